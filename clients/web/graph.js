// Graphs: reading files, first fit, solutions. A graph is {name, size, edges}; edges are pairs of nodes from 0.

export const MAX_NODES = 20_000; // `coloring-gnn color` takes larger graphs

// The graph of a file. Throws an Error whose message is one sentence that names the file and the line.
export function readGraph(fileName, text) {
  const [, name, suffix] = fileName.match(/^(.*?)(\.[^.]*)?$/s);
  const parse = PARSERS[suffix?.toLowerCase()];
  if (!parse) throw new Error(`${fileName}: name a file that ends in ${Object.keys(PARSERS).join(", ")}.`);
  try {
    return { name, ...parse(text.replace(/^\uFEFF/, "").split(/\r\n|\r|\n/)) };
  } catch (error) {
    throw new Error(`${fileName}: ${error.message}.`);
  }
}

// DIMACS: `p edge N M`, then `e u v` for every edge, nodes counted from 1.
function parseDimacs(lines) {
  let size = 0;
  const edges = [];
  lines.forEach((line, index) => {
    const where = `line ${index + 1}`;
    const [kind = "", ...words] = wordsOf(line);
    if (kind === "e" && isWhole(words[0]) && isWhole(words[1])) {
      const [u, v] = words.map(Number);
      if (!size) throw new Error(`${where}: edge ${u}-${v} comes before the header \`p edge N M\`; move the header up`);
      if (Math.min(u, v) < 1 || Math.max(u, v) > size)
        throw new Error(`${where}: edge ${u}-${v} is outside the nodes 1..${size} of the header; correct it`);
      edges.push([u - 1, v - 1]);
    } else if (kind === "p" && !size && /^(edges?|col)$/.test(words[0]) && isWhole(words[1]) && isWhole(words[2])) {
      size = checkedSize(Number(words[1]), `${where}: `);
    } else if (kind !== "" && !/^c/.test(kind) && !/^[ndvx]$/.test(kind)) {
      throw new Error(`${where}: "${shown(line)}" is neither \`c\`, one \`p edge N M\` nor \`e u v\`; fix it`);
    }
  });
  if (!size) throw new Error("there is no line `p edge N M`; a .col file begins with one");
  return { size, edges: simple(edges) };
}

// Brackets, quotes and other signs of programs, fractions, and signs alone, such as ->.
const NO_NAME = /["#()[\]{};:]|^[-\d. ]*[. ][-\d. ]*$|^-?[\d.]+e[-+]?\d+$|^[!-/:-@[-`{-~]+$/i;

// Two names per line, separated by tabs if a line has one, else by commas, else by blanks. Whole numbers are sorted,
// others keep their order. What may be more than a plain edge list is refused: `coloring-gnn color` can tell.
function parseEdgeList(lines) {
  const trimmed = lines.map((line) => line.replace(/^[ \t\v\f]+|[ \t\v\f]+$/g, ""));
  const isRow = (line) => line && !/^[#%]/.test(line);
  const separator = ["\t", ","].find((sign) => trimmed.some((line) => isRow(line) && line.includes(sign)));
  const pairs = [];
  trimmed.forEach((line, index) => {
    if (!isRow(line)) return;
    const words = separator ? line.split(separator).map((word) => wordsOf(word).join(" ")) : wordsOf(line);
    const where = `line ${index + 1}: "${shown(line)}"`;
    if (words.filter((word) => word).length < 2)
      throw new Error(`${where} is alone; an edge list has two nodes per line`);
    if (words.length !== 2 || words.some((word) => NO_NAME.test(word)))
      throw new Error(`${where} has more than the names of two nodes; keep these`);
    pairs.push(words);
  });
  if (!pairs.length) throw new Error("there is no edge; an edge list has two nodes per line");
  const [first, ...others] = pairs;
  const labels = [...new Set(pairs.flat())];
  const isNumber = (label) => isWhole(label.replace(/^-/, ""));
  const isHeader = !first.some(isNumber) && !first.some((word) => others.flat().includes(word));
  if (others.length && (isHeader || Number(first[1]) === others.length))
    throw new Error(`the first line, "${first.join(" ")}", may be a header or an edge; remove it, or move it to the end`);
  if (labels.every(isNumber)) labels.sort((a, b) => Number(BigInt(a) - BigInt(b)));
  const position = new Map(labels.map((label, index) => [label, index]));
  return { size: checkedSize(labels.length), edges: simple(pairs.map((pair) => pair.map((x) => position.get(x)))) };
}

const PARSERS = { ".col": parseDimacs, ".edgelist": parseEdgeList, ".edges": parseEdgeList, ".txt": parseEdgeList };
const wordsOf = (line) => line.split(/[ \t\v\f]+/).filter((word) => word);
const isWhole = (word) => /^\d{1,18}$/.test(word ?? "");
const shown = (text) => text.slice(0, 40);

function checkedSize(size, where = "") {
  if (size < 1 || size > MAX_NODES)
    throw new Error(`${where}the graph has ${size} nodes; this page colors graphs of 1 to ${MAX_NODES} nodes`);
  return size;
}

// The edges without loops and repeats, each with its smaller node first.
function simple(edges) {
  const kept = new Map();
  for (const [a, b] of edges) {
    const [u, v] = [Math.min(a, b), Math.max(a, b)];
    if (u < v) kept.set(u * MAX_NODES + v, [u, v]);
  }
  return [...kept.values()];
}

// The graph of pairs of nodes. `size` is the number of nodes; without it, the largest node is the last.
export function graphOf(edges, size) {
  const pairs = Array.from(edges, (edge) => Array.from(edge));
  const found = pairs.reduce((most, pair) => Math.max(most, ...pair), -1) + 1;
  const isNode = (node) => Number.isInteger(node) && node >= 0;
  const wrong = pairs.find((pair) => pair.length !== 2 || !pair.every(isNode));
  if (wrong) throw new TypeError(`an edge is a pair of nodes that count from 0, not [${wrong}]`);
  if (size !== undefined && !(isNode(size) && found <= size))
    throw new RangeError(`size (${size}) must be above the largest node (${found - 1})`);
  if ((size ?? found) > MAX_NODES) throw new RangeError(`the graph has more than ${MAX_NODES} nodes`);
  return { size: size ?? found, edges: simple(pairs) };
}

function neighboursOf({ size, edges }) {
  const neighbours = Array.from({ length: size }, () => []);
  for (const [u, v] of edges) {
    neighbours[u].push(v);
    neighbours[v].push(u);
  }
  return neighbours;
}

// A proper coloring: each node of `order` takes the smallest color that no neighbour has. Colors count from 0.
export function firstFit(graph, order) {
  const neighbours = neighboursOf(graph);
  const colors = new Array(graph.size).fill(-1);
  for (const node of order) colors[node] = smallestWithout(neighbours[node].map((other) => colors[other]));
  return colors;
}

function smallestWithout(taken) {
  const colors = new Set(taken);
  let color = 0;
  while (colors.has(color)) color++;
  return color;
}

// DSATUR (Brélaz 1979): the node with most colors around it is next, ties by degree, then number.
export function dsatur(graph) {
  const neighbours = neighboursOf(graph);
  const colors = new Array(graph.size).fill(-1);
  const around = neighbours.map(() => new Set());
  const keys = Float64Array.from(neighbours, ({ length }) => length);
  for (let colored = 0; colored < graph.size; colored++) {
    let node = 0;
    for (let other = 1; other < graph.size; other++) if (keys[other] > keys[node]) node = other;
    const color = (colors[node] = smallestWithout(around[node]));
    keys[node] = -1;
    for (const other of neighbours[node]) {
      if (keys[other] >= 0 && !around[other].has(color)) {
        around[other].add(color);
        keys[other] += graph.size;
      }
    }
  }
  return colors;
}

// Size of a clique, grown greedily from each of the nodes of highest degree: no coloring has fewer colors.
export function cliqueSize(graph) {
  const neighbours = neighboursOf(graph);
  const degree = (node) => neighbours[node].length;
  const starts = [...neighbours.keys()].sort((a, b) => degree(b) - degree(a)).slice(0, 1000);
  const met = new Int32Array(graph.size); // members of the clique beside a node
  let largest = Math.min(1, graph.size);
  for (const start of starts) {
    met.fill(0);
    let size = 0;
    for (let node = start; node >= 0; ) {
      size++;
      met[node] = -1;
      let next = -1;
      for (const other of neighbours[node]) {
        if (met[other] !== size - 1) continue;
        met[other] = size;
        if (next < 0 || degree(other) > degree(next) || (degree(other) === degree(next) && other < next)) next = other;
      }
      node = next;
    }
    largest = Math.max(largest, size);
  }
  return largest;
}

// A DIMACS solution: `s col K`, then `l NODE COLOR` for every node, both counted from 1.
export function solution(colors) {
  const lines = colors.map((color, node) => `l ${node + 1} ${color + 1}`);
  return [`s col ${new Set(colors).size}`, ...lines].join("\n") + "\n";
}

// The pairs of items, as numbers, that are related.
function pairs(items, related) {
  return items.flatMap((item, v) => items.slice(0, v).flatMap((other, u) => (related(item, other) ? [[u, v]] : [])));
}

// Small graphs to begin with.
export const EXAMPLES = {
  "Petersen graph": () => {
    const ring = [0, 1, 2, 3, 4];
    const edges = ring.flatMap((i) => [[i, (i + 1) % 5], [i, i + 5], [i + 5, ((i + 2) % 5) + 5]]);
    return { name: "petersen", size: 10, edges: simple(edges) };
  },
  "Queens on 8 × 8 squares": () => {
    const squares = Array.from({ length: 64 }, (_, i) => [Math.floor(i / 8), i % 8]);
    const attacks = ([a, b], [c, d]) => a === c || b === d || Math.abs(a - c) === Math.abs(b - d);
    return { name: "queen8_8", size: 64, edges: pairs(squares, attacks) };
  },
  "150 points, close ones joined": () => {
    const fraction = (x) => x - Math.floor(x);
    const place = (i) => [fraction(i * 0.7549), fraction(i * 0.5698 + Math.sin(i) / 9)];
    const points = Array.from({ length: 150 }, (_, i) => place(i));
    return { name: "points", size: 150, edges: pairs(points, ([a, b], [c, d]) => Math.hypot(a - c, b - d) < 0.15) };
  },
};
