// The picture of a graph on a canvas: places of the nodes, their colors, and drawing by hand.
const LAYOUT_NODES = 1000; // larger graphs stand on a circle, ordered by color
const LAYOUT_ROUNDS = 200;
const DRAWN_EDGES = 30_000; // of more edges, a part is drawn
const MARGIN = 28; // pixels
const TAP = 14; // pixels from a node that still count as a tap on it; half of it from an edge

export class Picture {
  #graph = { size: 0, edges: [] };
  #places = []; // [x, y] of every node, each 0 to 1
  #colors = []; // undefined where none is known
  #layout = null; // an iterator over the rounds still to do
  #editable = false;
  #drag = null; // {from: node or -1, start, end}: places in pixels

  // onEdit gets the new graph {size, edges} after every change by hand.
  constructor(canvas, onEdit) {
    this.canvas = canvas;
    this.onEdit = onEdit;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").onchange = () => this.#draw();
    canvas.onpointerdown = (event) => this.#press(event);
    canvas.onpointermove = (event) => this.#move(event);
    canvas.onpointerup = (event) => this.#release(event);
    canvas.onpointercancel = () => this.#endDrag();
  }

  setGraph(graph) {
    this.#graph = graph;
    this.#colors = [];
    this.#placeOnCircle(Array.from({ length: graph.size }, (_, node) => node));
    this.#layout = graph.size <= LAYOUT_NODES ? forces(graph) : null;
    this.#advance(this.#layout);
  }

  setColors(colors) {
    this.#colors = colors;
    if (this.#graph.size > LAYOUT_NODES) this.#placeOnCircle([...colors.keys()].sort((a, b) => colors[a] - colors[b]));
    this.#draw();
  }

  setEditable(editable) {
    this.#editable = editable;
    this.#layout = editable ? null : this.#layout; // nodes stay where they are
    this.canvas.classList.toggle("editable", editable);
  }

  #placeOnCircle(order) {
    order.forEach((node, index) => {
      const angle = (2 * Math.PI * index) / order.length;
      this.#places[node] = [0.5 + 0.5 * Math.sin(angle), 0.5 - 0.5 * Math.cos(angle)];
    });
    this.#places.length = order.length;
  }

  #advance(layout) {
    if (this.#layout !== layout) return; // another graph has come
    const { value, done } = layout?.next() ?? { done: true };
    if (value) this.#places = value;
    this.#draw();
    if (!done) requestAnimationFrame(() => this.#advance(layout));
  }

  // --- Drawing by hand

  #press(event) {
    if (!this.#editable) return;
    this.canvas.setPointerCapture(event.pointerId);
    const start = [event.offsetX, event.offsetY];
    this.#drag = { from: this.#nodeAt(start), start, end: start };
  }

  #move(event) {
    if (!this.#drag) return;
    this.#drag.end = [event.offsetX, event.offsetY];
    this.#draw();
  }

  #release(event) {
    if (!this.#drag) return;
    const { from, start } = this.#drag;
    const end = [event.offsetX, event.offsetY];
    const to = this.#nodeAt(end);
    const isTap = distance(start, end) < TAP;
    this.#endDrag();
    if (from >= 0 && to >= 0 && from !== to) this.#addEdge(Math.min(from, to), Math.max(from, to));
    else if (from >= 0 && from === to && isTap) this.#removeNode(from);
    else if (from < 0 && isTap) this.#removeEdgeOrAddNode(end);
  }

  #endDrag() {
    this.#drag = null;
    this.#draw();
  }

  #addEdge(u, v) {
    const { size, edges } = this.#graph;
    if (!edges.some(([a, b]) => a === u && b === v)) this.#edit({ size, edges: [...edges, [u, v]] });
  }

  #removeNode(node) {
    const { size, edges } = this.#graph;
    const kept = edges.filter((edge) => !edge.includes(node));
    this.#places.splice(node, 1);
    this.#colors = this.#colors.filter((_, other) => other !== node);
    this.#edit({ size: size - 1, edges: kept.map((edge) => edge.map((end) => end - (end > node))) });
  }

  #removeEdgeOrAddNode(point) {
    const { size, edges } = this.#graph;
    const [x, y, width, height] = this.#frame();
    const hit = edges.findIndex(([u, v]) => distanceToLine(point, this.#pixels(u), this.#pixels(v)) < TAP / 2);
    if (hit >= 0) return this.#edit({ size, edges: edges.toSpliced(hit, 1) });
    this.#places.push([(point[0] - x) / width, (point[1] - y) / height]);
    this.#edit({ size: size + 1, edges });
  }

  #edit(graph) {
    this.#graph = graph;
    this.#draw();
    this.onEdit(graph);
  }

  // --- Pixels

  #frame() {
    const { clientWidth, clientHeight } = this.canvas;
    return [MARGIN, MARGIN, Math.max(1, clientWidth - 2 * MARGIN), Math.max(1, clientHeight - 2 * MARGIN)];
  }

  #pixels(node) {
    const [x, y, width, height] = this.#frame();
    return [x + this.#places[node][0] * width, y + this.#places[node][1] * height];
  }

  #radius() {
    const [, , width, height] = this.#frame();
    return Math.min(16, Math.max(2, 0.16 * Math.sqrt((width * height) / this.#graph.size)));
  }

  #nodeAt(point) {
    const reach = Math.max(TAP, this.#radius());
    const gaps = this.#places.map((_, node) => distance(point, this.#pixels(node)));
    const nearest = gaps.indexOf(Math.min(...gaps));
    return gaps[nearest] < reach ? nearest : -1;
  }

  // The picture as it is now, as the text of an SVG file.
  svg() {
    const { clientWidth, clientHeight } = this.canvas;
    const { edges } = this.#graph;
    const points = this.#places.map((_, node) => this.#pixels(node).map((place) => place.toFixed(1)));
    const radius = this.#radius();
    const lines = edges.map(([u, v]) => `M${points[u]}L${points[v]}`).join("");
    const nodes = points.map(([x, y], node) => {
      const color = this.#colors[node];
      const text = radius < 7 || color === undefined ? "" : `<text x="${x}" y="${y}" dy=".35em">${color + 1}</text>`;
      return `<circle cx="${x}" cy="${y}" r="${radius.toFixed(1)}" fill="${fillOf(color)}"/>${text}`;
    });
    const style = `font-family="sans-serif" font-weight="600" font-size="${radius.toFixed(1)}" text-anchor="middle"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${clientWidth} ${clientHeight}">
<path d="${lines}" stroke="#222" stroke-opacity="${opacity(edges.length).toFixed(3)}"/>
<g ${style}>
${nodes.join("\n")}
</g>
</svg>
`;
  }

  #draw() {
    const { canvas } = this;
    const { size, edges } = this.#graph;
    const scale = devicePixelRatio;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const line = (from, to) => {
      context.moveTo(...from);
      context.lineTo(...to);
    };

    const points = this.#places.map((_, node) => this.#pixels(node));
    context.strokeStyle = style.color;
    context.globalAlpha = opacity(edges.length);
    context.beginPath();
    const stride = Math.ceil(edges.length / DRAWN_EDGES);
    for (let i = 0; i < edges.length; i += stride) line(points[edges[i][0]], points[edges[i][1]]);
    if (this.#drag?.from >= 0) line(points[this.#drag.from], this.#drag.end);
    context.stroke();

    context.globalAlpha = 1;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const radius = this.#radius();
    context.font = `600 ${radius}px system-ui, sans-serif`;
    for (let node = 0; node < size; node++) {
      const color = this.#colors[node];
      context.fillStyle = fillOf(color);
      context.beginPath();
      context.arc(...points[node], radius, 0, 2 * Math.PI);
      context.fill();
      if (radius < 7 || color === undefined) continue; // the number helps where colors look alike
      context.fillStyle = "black";
      context.fillText(color + 1, points[node][0], points[node][1] + radius / 12);
    }
  }
}

// Colors that black numbers can be read on; after those, hues a golden angle apart.
const FILLS = [
  "#5b9df0", "#ee5d6c", "#58c46b", "#f5b83d", "#b48bf2", "#5fd6d6",
  "#f48ac8", "#b5dc4b", "#c8905a", "#9aa5b5", "#f3e96b", "#3fae95",
];
const fill = (color) => FILLS[color] ?? `hsl(${(color * 137.508) % 360} 70% ${[60, 75][color % 2]}%)`;
const fillOf = (color) => (color === undefined ? "gray" : fill(color));
const opacity = (numEdges) => Math.min(0.5, 0.015 + 160 / numEdges); // of edges

const distance = ([a, b], [c, d]) => Math.hypot(a - c, b - d);

function distanceToLine(point, from, to) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const along = ((point[0] - from[0]) * dx + (point[1] - from[1]) * dy) / (dx * dx + dy * dy || 1);
  const t = Math.min(1, Math.max(0, along));
  return distance(point, [from[0] + t * dx, from[1] + t * dy]);
}

// Rounds of a force-directed layout (Fruchterman and Reingold 1991). Each yields places within 0 to 1.
function* forces({ size, edges }) {
  const x = new Float64Array(size);
  const y = new Float64Array(size);
  for (let i = 0; i < size; i++) {
    x[i] = Math.sqrt(size) * Math.sin((2 * Math.PI * i) / size);
    y[i] = -Math.sqrt(size) * Math.cos((2 * Math.PI * i) / size);
  }
  const degree = new Float64Array(size);
  for (const edge of edges) for (const end of edge) degree[end]++;
  for (let round = 0; round < LAYOUT_ROUNDS; round++) {
    const dx = x.map((place) => -0.05 * place); // toward the middle, so that parts stay together
    const dy = y.map((place) => -0.05 * place);
    for (let i = 0; i < size; i++)
      for (let j = 0; j < i; j++) {
        const [gx, gy] = [x[i] - x[j], y[i] - y[j]];
        const push = 1 / (gx * gx + gy * gy + 0.01);
        dx[i] += push * gx;
        dy[i] += push * gy;
        dx[j] -= push * gx;
        dy[j] -= push * gy;
      }
    for (const [i, j] of edges) {
      const [gx, gy] = [x[i] - x[j], y[i] - y[j]];
      const pull = Math.hypot(gx, gy) / Math.max(1, Math.sqrt(degree[i] * degree[j]) / 3);
      dx[i] -= pull * gx;
      dy[i] -= pull * gy;
      dx[j] += pull * gx;
      dy[j] += pull * gy;
    }
    const longest = 0.3 * Math.sqrt(size) * (1 - round / LAYOUT_ROUNDS);
    for (let i = 0; i < size; i++) {
      const length = Math.hypot(dx[i], dy[i]) || 1;
      x[i] += (dx[i] / length) * Math.min(length, longest);
      y[i] += (dy[i] / length) * Math.min(length, longest);
    }
    yield within(x, y);
  }
}

// Places moved and scaled, the same in both directions, to lie around the middle of 0 to 1.
function within(x, y) {
  const [left, right, top, bottom] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
  const extent = Math.max(right - left, bottom - top) || 1;
  const scaled = (place, low, high) => 0.5 + (place - (low + high) / 2) / extent;
  return Array.from(x, (_, i) => [scaled(x[i], left, right), scaled(y[i], top, bottom)]);
}
