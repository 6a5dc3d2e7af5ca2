// Colors a graph beside the page. A message {graph, steps, seed} is answered by {colors, chromatic, seconds, clique,
// dsatur}, the last two being the size of a clique and DSATUR's number of colors, or by {error}.
import { open, predict } from "./color.js";
import { cliqueSize, dsatur } from "./graph.js";

open().catch(() => {}); // the first message reports it

self.onmessage = async ({ data: { graph, steps, seed } }) => {
  try {
    await open();
    const { size, edges } = graph;
    const start = performance.now();
    const { colors, chromatic } = await predict(edges, { size, steps, seed });
    const seconds = (performance.now() - start) / 1000;
    self.postMessage({ colors, chromatic, seconds, clique: cliqueSize(graph), dsatur: new Set(dsatur(graph)).size });
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
};
