/** What a coloring may cost. */
export interface Options {
  /** Number of nodes; without it, the largest node of an edge is the last. */
  size?: number;
  /** Time for the search, 1 by default. One call is always made; 0 makes no other. */
  seconds?: number;
  /** Enough once so few colors are found. */
  k?: number;
  /** Another seed gives another coloring of the same quality: a whole number, 0 by default. */
  seed?: number;
  /** Rounds of the first call, 1000 by default. Later calls have up to four times as many. */
  steps?: number;
  /**
   * Address or bytes of the file: `coloring_gnn_web.onnx` beside this module by default; in Node.js, the shipped file of
   * the repository. A relative address counts from this module.
   */
  model?: string | URL | Uint8Array;
}

/**
 * A proper coloring with few colors: the color of every node, from 0 without gaps. Edges are pairs of nodes that count
 * from 0; loops and repeated edges are ignored. It ends early when a clique proves that fewer colors are not enough.
 *
 * @throws TypeError or RangeError for edges or options that cannot be used.
 */
export function color(edges: Iterable<readonly [number, number]>, options?: Options): Promise<number[]>;

/**
 * One call: its coloring, and the predicted median of the number of colors that a hundred times its steps would reach.
 */
export function predict(edges: Iterable<readonly [number, number]>, options?: Omit<Options, "seconds" | "k">):
  Promise<{ colors: number[]; chromatic: number }>;

/** Opens the file, which `color` otherwise does at its first call. */
export function open(model?: Options["model"]): Promise<unknown>;
