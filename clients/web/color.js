// Colors a graph with calls of coloring_gnn_web.onnx, in a browser or in Node.js. `color.d.ts` has the types.
import { cliqueSize, firstFit, graphOf } from "./graph.js";

const CALL_LENGTH = 4; // calls after the first, in steps of the first
const inNode = Boolean(globalThis.process?.versions?.node);
let ort; // not imported at the top, or a worker would miss the messages until then

const sessions = new Map(); // by model: opened once
const integers = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);

// The colors of all nodes, from 0 without gaps: proper, and as few as the time allows. See color.d.ts.
export async function color(edges, { size, seconds = 1, k = 1, seed = 0, steps = 1000, model } = {}) {
  const graph = graphOf(edges, size);
  if (!(seconds >= 0) || !(steps >= 0)) throw new RangeError("seconds and steps are numbers of 0 or above");
  if (!graph.size) return [];
  const session = await open(model);
  const end = performance.now() + 1000 * seconds;
  const enough = Math.max(k, cliqueSize(graph));
  let best = (await call(session, graph, steps, seed)).colors;
  let perStep = Math.max(0, 1000 * seconds - (end - performance.now())) / Math.max(1, steps); // milliseconds
  for (let number = 1; numColors(best) > enough; number++) {
    const start = performance.now();
    const length = Math.floor(Math.min(CALL_LENGTH * steps, (end - start) / perStep));
    if (length < 1 || length < steps / 4) break;
    const found = (await call(session, graph, length, seed + number)).colors;
    perStep = (performance.now() - start) / length;
    if (numColors(found) < numColors(best)) best = found;
  }
  return best;
}

// The colors of one call, and the number of colors predicted for a hundred times its steps. See color.d.ts.
export async function predict(edges, { size, seed = 0, steps = 1000, model } = {}) {
  const graph = graphOf(edges, size);
  return graph.size ? call(await open(model), graph, steps, seed) : { colors: [], chromatic: 0 };
}

const numColors = (colors) => new Set(colors).size;

// The session of a file's address or bytes, opened once. A program may call this early.
export function open(model = inNode ? "../../gnn_training/shipped/coloring_gnn_web.onnx" : "coloring_gnn_web.onnx") {
  if (!sessions.has(model)) {
    const opened = load(model);
    opened.catch(() => sessions.delete(model)); // the next call tries again
    sessions.set(model, opened);
  }
  return sessions.get(model);
}

async function load(model) {
  ort ??= await import(inNode ? "onnxruntime-web" : "./runtime/ort.wasm.bundle.min.mjs");
  ort.env.wasm.numThreads = 1; // more threads need headers that many static servers do not send
  const address = typeof model === "string" ? new URL(model, import.meta.url) : model;
  const isFile = address.protocol === "file:";
  const source = isFile ? await (await import("node:fs/promises")).readFile(address) : (address.href ?? address);
  return ort.InferenceSession.create(source, { executionProviders: ["wasm"], logSeverityLevel: 3 });
}

// One call of the network; the nodes in the order of its colors take the first free one.
async function call(session, graph, steps, seed) {
  const { size, edges } = graph;
  const { color_logits, chromatic } = await session.run({
    node_features: new ort.Tensor("float32", new Float32Array(size * 16), [size, 16]), // not used
    edge_index: integers(edges.map(([u]) => u).concat(edges.map(([, v]) => v)), [2, edges.length]),
    batch: integers(new Array(size).fill(0), [size]),
    num_colors: integers([0], [1]),
    seed: integers([seed], []),
    steps: integers([steps], []),
  });
  const classes = argmax(color_logits.data, size);
  const order = [...classes.keys()].sort((a, b) => classes[a] - classes[b]); // sort is stable
  return { colors: firstFit(graph, order), chromatic: Math.round(chromatic.data[0]) };
}

// The column of the largest number of every row.
function argmax(values, rows) {
  const columns = values.length / rows;
  return Array.from({ length: rows }, (_, row) => {
    const numbers = values.subarray(row * columns, (row + 1) * columns);
    return numbers.reduce((best, number, column) => (number > numbers[best] ? column : best), 0);
  });
}
