// Calls the network file. A message {graph, steps, seed} is answered by {colors, seconds} or by {error}.
import { firstFit } from "./graph.js";
import * as ort from "./runtime/ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // more threads need headers that many static servers do not send
const options = { executionProviders: ["wasm"], logSeverityLevel: 3 };
const opened = ort.InferenceSession.create("./coloring_gnn_web.onnx", options);
opened.catch(() => {}); // the first message reports it

const integers = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);

self.onmessage = async ({ data: { graph, steps, seed } }) => {
  try {
    const session = await opened;
    const { size, edges } = graph;
    const start = performance.now();
    const { color_logits } = await session.run({
      node_features: new ort.Tensor("float32", new Float32Array(size * 16), [size, 16]), // not used
      edge_index: integers(edges.map(([u]) => u).concat(edges.map(([, v]) => v)), [2, edges.length]),
      batch: integers(new Array(size).fill(0), [size]),
      num_colors: integers([0], [1]),
      seed: integers([seed], []),
      steps: integers([steps], []),
    });
    const classes = argmax(color_logits.data, size);
    const order = [...classes.keys()].sort((a, b) => classes[a] - classes[b]); // sort is stable
    self.postMessage({ colors: firstFit(graph, order), seconds: (performance.now() - start) / 1000 });
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
};

// The column of the largest number of every row.
function argmax(values, rows) {
  const columns = values.length / rows;
  return Array.from({ length: rows }, (_, row) => {
    const numbers = values.subarray(row * columns, (row + 1) * columns);
    return numbers.reduce((best, number, column) => (number > numbers[best] ? column : best), 0);
  });
}
