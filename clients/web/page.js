// The controls, what the page says, and the worker that colors.
import { EXAMPLES, readGraph, solution } from "./graph.js";
import { Picture } from "./picture.js";

const STEPS = [0, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000]; // of the slider
const DEFAULT_STEPS = 1000;
const $ = (id) => document.getElementById(id);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

const picture = new Picture($("canvas"), (drawn) => {
  $("example").value = "";
  colorGraph({ ...drawn, name: "drawing" });
});
let graph; // {name, size, edges}, see graph.js
let colors; // of its nodes, once they are known

// The worker. While it is busy, only the newest graph and settings wait.
let worker = null;
let waiting = false;

function colorGraph(next = graph) {
  graph = next;
  waiting = document.body.dataset.state === "busy";
  if (!waiting) send();
}

function send() {
  if (!graph.size) return setState("empty", "", "There is no node yet.");
  setState("busy", "Coloring …", describe());
  worker ??= startWorker();
  worker.postMessage({ graph, steps: STEPS[$("steps").value], seed: Number($("seed").value) });
}

function startWorker() {
  const started = new Worker("worker.js", { type: "module" });
  started.onmessage = ({ data }) => receive(data);
  started.onerror = () => receive({ error: "a file of this page cannot be loaded" });
  return started;
}

function endWorker() {
  worker?.terminate();
  worker = null;
  waiting = false;
}

// A worker cannot be interrupted, and a new one takes a second to start: an idle one is kept.
function interrupt() {
  if (document.body.dataset.state === "busy") endWorker();
  setState("", "", "");
}

function receive(answer) {
  if (answer.error) {
    endWorker(); // its memory may be exhausted
    fail(`The network cannot run: ${answer.error}`);
  } else if (waiting) {
    waiting = false;
    send();
  } else {
    colors = answer.colors;
    picture.setColors(colors);
    const found = new Set(colors).size;
    const facts = [describe(), compare(found, answer), expect(found, answer), `${answer.seconds.toFixed(2)} s`];
    setState("done", count(found, "color"), facts.filter(Boolean).join("\n"));
  }
}

// What the page says.
const describe = () => `${graph.name}: ${count(graph.size, "node")}, ${count(graph.edges.length, "edge")}`;
const compare = (found, { clique, dsatur }) =>
  `${found === clique ? "No coloring has fewer colors" : `At least ${count(clique, "color")} needed`}. ` +
  `The greedy method DSATUR finds ${dsatur}.`;
const expect = (found, { clique, chromatic }) =>
  found > clique && `With a hundred times the steps, ${Math.min(found, chromatic)} are predicted.`;
const fail = (sentence) => setState("error", "", "", sentence);

function setState(state, result, facts, error = "") {
  document.body.dataset.state = state;
  $("result").textContent = result;
  $("facts").textContent = facts;
  $("error").textContent = error;
  for (const id of ["download", "png", "svg"]) $(id).disabled = state !== "done";
  $("stop").disabled = state !== "busy";
  $("canvas").ariaLabel = [facts, result].filter(Boolean).join(", ");
}

function showSettings() {
  $("steps-value").textContent = $("steps").ariaValueText = STEPS[$("steps").value].toLocaleString("en");
  $("seed-value").textContent = $("seed").value;
}

function setDrawing(on) {
  picture.setEditable(on);
  $("draw").ariaPressed = on;
  $("clear").hidden = !on;
  $("hint").textContent = on
    ? "Tap to add a node. Drag from node to node to add an edge. Tap a node or an edge to remove it."
    : "You can also drop a file on the page: DIMACS (.col) or an edge list (.edgelist, .edges, .txt).";
}

// Where graphs come from.
function show(next) {
  interrupt();
  setDrawing(false);
  picture.setGraph(next);
  colorGraph(next);
}

async function openFile(file) {
  interrupt();
  $("example").value = "";
  try {
    show(readGraph(file.name, await file.text()));
  } catch (error) {
    fail(error.message);
  }
}

$("example").append(...Object.keys(EXAMPLES).map((name) => new Option(name)));
$("example").onchange = () => show(EXAMPLES[$("example").value]());
$("open").onclick = () => $("file").click();
$("file").onchange = () => {
  if ($("file").files[0]) openFile($("file").files[0]);
  $("file").value = ""; // so that the same file can be opened again
};
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) openFile(event.dataTransfer.files[0]);
};
$("draw").onclick = () => setDrawing($("draw").ariaPressed !== "true");
$("clear").onclick = () => {
  show({ name: "drawing", size: 0, edges: [] });
  $("example").value = "";
  setDrawing(true);
};

Object.assign($("steps"), { max: STEPS.length - 1, value: STEPS.indexOf(DEFAULT_STEPS) });
for (const slider of [$("steps"), $("seed")]) {
  slider.oninput = showSettings;
  slider.onchange = () => colorGraph();
}
$("stop").onclick = () => {
  interrupt();
  setState("stopped", "Stopped", `${describe()}. Fewer steps take less time.`);
};
function save(content, suffix) {
  const url = URL.createObjectURL(content);
  Object.assign(document.createElement("a"), { href: url, download: graph.name + suffix }).click();
  URL.revokeObjectURL(url);
}
$("download").onclick = () => save(new Blob([solution(colors)], { type: "text/plain" }), ".sol");
$("png").onclick = () => $("canvas").toBlob((image) => save(image, ".png"));
$("svg").onclick = () => save(new Blob([picture.svg()], { type: "image/svg+xml" }), ".svg");
showSettings();
$("example").selectedIndex = 1;
show(EXAMPLES[$("example").value]());
