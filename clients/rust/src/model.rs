use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use ort::environment::Environment;
use ort::ep::ExecutionProviderDispatch;
use ort::logging::LogLevel;
use ort::session::{RunOptions, Session};
use ort::value::Tensor;

use crate::coloring::by_class;
use crate::portfolio::threads_of;
use crate::{Error, Graph, NUM_FEATURES, Result};

const INPUTS: [&str; 6] = ["node_features", "edge_index", "batch", "num_colors", "seed", "steps"];
const OUTPUTS: [&str; 4] = ["color_logits", "chromatic", "graph_type_logits", "difficulty"];

/// ONNX Runtime allows one environment per process.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// How a file is opened.
///
/// The first model that is opened sets the variable `ORT_DISABLE_TELEMETRY` to 1, unless it is set, before it loads the
/// library. If C code of your program reads or changes variables in other threads at that time, set it earlier.
#[derive(Clone, Default)]
pub struct Options {
    /// The library of ONNX Runtime, 1.17 or newer. Without: `ORT_DYLIB_PATH`, else the system's search path.
    /// The first model that is opened decides for the process.
    pub library: Option<PathBuf>,
    /// Threads of one call; 0: every core that this process may use.
    pub threads: usize,
    /// Tried in this order, then the CPU. Errors are silent unless a provider is built with `error_on_failure`.
    pub execution_providers: Vec<ExecutionProviderDispatch>,
    /// For programs that have made ONNX Runtime's environment already; `library` is then without effect.
    pub environment: Option<Environment>,
}

/// What a call asks for; what is left out is left to the file.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Where the search for fewer colors begins; no limit in either direction.
    pub num_colors: Option<usize>,
    /// Another seed, another coloring of the same quality.
    pub seed: Option<i64>,
    /// Rounds of the search: more is better and slower.
    pub steps: Option<usize>,
}

/// Kind of graph, as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Family {
    RandomSparse,
    RandomDense,
    Register,
    Leighton,
    QueenGeometric,
    Mycielski,
    ScaleFree,
    SmallWorld,
}

/// In the order of the scores.
const FAMILIES: [Family; 8] = {
    use Family::*;
    [RandomSparse, RandomDense, Register, Leighton, QueenGeometric, Mycielski, ScaleFree, SmallWorld]
};

/// What the network says about one graph.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Scores, a row of [`Prediction::num_columns`] per node: used colors above 0, unused columns 0.
    pub logits: Vec<f32>,
    /// Columns of `logits`.
    pub num_columns: usize,
    /// Estimated number of colors needed. No bound: a solver that prunes with it loses colorings.
    pub chromatic: f32,
    /// Scores of the families, in the order of [`Family`].
    pub family_logits: [f32; 8],
    /// 0 easy to 100 hard.
    pub difficulty: f32,
}

impl Prediction {
    /// Best color of every node: proper, unless the graph needs more colors than there are columns.
    pub fn classes(&self) -> Vec<usize> {
        self.logits.chunks_exact(self.num_columns).map(argmax).collect()
    }

    /// Nodes by class, for first fit ([`Coloring::greedy`](crate::Coloring::greedy)) or as a solver's vertex order.
    pub fn ordering(&self) -> Vec<usize> {
        by_class(&self.classes())
    }

    /// The family with the highest score.
    pub fn family(&self) -> Family {
        FAMILIES[argmax(&self.family_logits)]
    }
}

/// An open model file. Calls need it alone (`&mut`): open one per thread, or put many graphs into one call.
pub struct ColoringGnn {
    session: Session,
    steps: usize,
}

impl ColoringGnn {
    /// Opens a file that the trainer has exported.
    ///
    /// # Errors
    /// [`Error::Library`] without ONNX Runtime, [`Error::Model`] if the file is none or has other tensors.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let refuse = |error| Error::Model { path: path.into(), reason: format!("cannot be read ({error})") };
        Self::from_file(path, &std::fs::read(path).map_err(refuse)?, options)
    }

    /// Opens the bytes of such a file, like [`MODEL`](crate::MODEL), which comes with the crate.
    ///
    /// # Errors
    /// As [`ColoringGnn::open`].
    pub fn from_bytes(model: &[u8], options: Options) -> Result<Self> {
        Self::from_file("the model".as_ref(), model, options)
    }

    fn from_file(path: &Path, bytes: &[u8], options: Options) -> Result<Self> {
        let refuse = |reason: String| Error::Model { path: path.into(), reason };
        let environment = match options.environment {
            Some(environment) => environment,
            None => environment(options.library)?,
        };
        let session = (|| {
            Session::builder(&environment)?
                .with_intra_threads(threads_of(options.threads))?
                // Threads that spin while they wait take the cores from those that work.
                .with_intra_op_spinning(false)?
                .with_log_level(LogLevel::Error)?
                .with_execution_providers(options.execution_providers)?
                .commit_from_memory(bytes)
        })()
        .map_err(|error: ort::Error| refuse(format!("ONNX Runtime refuses it ({error})")))?;
        expect_contract(&session).map_err(refuse)?;
        let steps = session.metadata()?.custom("steps").and_then(|steps| steps.parse().ok());
        let steps = steps.ok_or_else(|| refuse("its metadata does not say how many steps a call takes".into()))?;
        Ok(Self { session, steps })
    }

    /// Rounds of a call that does not say.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// A string of the file's metadata, such as `model_version` or `data_sha256`.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.session.metadata().ok()?.custom(key)
    }

    /// One three-input call for one graph.
    ///
    /// ```no_run
    /// # use coloring_gnn::{Coloring, ColoringGnn, Graph, MODEL, Options};
    /// let mut model = ColoringGnn::from_bytes(MODEL, Options::default())?; // needs ONNX Runtime
    /// let square = Graph::from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)])?;
    /// let prediction = model.predict(&square)?;
    /// println!("{:?}, perhaps {:.1} colors", prediction.family(), prediction.chromatic);
    /// let start = Coloring::greedy(&square, &prediction.ordering()); // a solver's first solution
    /// assert_eq!(start.num_colors(), 2);
    /// # Ok::<(), coloring_gnn::Error>(())
    /// ```
    pub fn predict(&mut self, graph: &Graph) -> Result<Prediction> {
        let mut predictions = self.predict_batch(&[graph], &Request::default())?;
        Ok(predictions.remove(0))
    }

    /// Many graphs in one call, padded to the largest: for small ones of like size. Answers keep their order.
    pub fn predict_batch(&mut self, graphs: &[&Graph], request: &Request) -> Result<Vec<Prediction>> {
        Ok(self.run(graphs, request, None)?.unwrap_or_default())
    }

    /// As `predict_batch`, stopped at `deadline`: None then.
    pub(crate) fn run(
        &mut self,
        graphs: &[&Graph],
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Option<Vec<Prediction>>> {
        if graphs.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut options = RunOptions::new()?;
        options.set_log_level(LogLevel::Fatal)?; // what fails is returned, and a stopped call is no error
        let (features, edge_index, batch) = collate(graphs);
        let mut inputs = ort::inputs![
            "node_features" => Tensor::from_array(([batch.len(), NUM_FEATURES], features))?,
            "edge_index" => Tensor::from_array(([2, edge_index.len() / 2], edge_index))?,
            "batch" => Tensor::from_array(([batch.len()], batch))?,
        ];
        if let Some(colors) = request.num_colors {
            inputs.push(("num_colors".into(), Tensor::from_array(([1], vec![colors as i64]))?.into()));
        }
        for (name, value) in [("seed", request.seed), ("steps", request.steps.map(|steps| steps as i64))] {
            if let Some(value) = value {
                inputs.push((name.into(), Tensor::from_array(((), vec![value]))?.into()));
            }
        }
        let (session, options) = (&mut self.session, &options);
        thread::scope(|scope| {
            let (ended, end) = mpsc::channel::<()>();
            let watch = deadline.map(|deadline| {
                scope.spawn(move || {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let late = end.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout);
                    late && options.terminate().is_ok()
                })
            });
            let outputs = session.run_with_options(inputs, options);
            drop(ended);
            let late = watch.is_some_and(|watch| watch.join().unwrap_or(false));
            match outputs {
                Err(_) if late => Ok(None),
                outputs => split(graphs, &outputs?).map(Some),
            }
        })
    }
}

/// All graphs side by side: `node_features` (N, 16), `edge_index` (2, E) with all sources, then all targets, `batch`.
fn collate(graphs: &[&Graph]) -> (Vec<f32>, Vec<i64>, Vec<i64>) {
    let (mut features, mut batch) = (Vec::new(), Vec::<i64>::new());
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for (index, graph) in graphs.iter().enumerate() {
        let start = batch.len();
        for (u, v) in graph.directed() {
            sources.push((start + u) as i64);
            targets.push((start + v) as i64);
        }
        features.extend(graph.node_features());
        batch.resize(start + graph.num_nodes(), index as i64);
    }
    if sources.is_empty() {
        // The contract's other form of no edges: ort makes no tensors without elements.
        (sources, targets) = (vec![0], vec![0]);
    }
    sources.append(&mut targets);
    (features, sources, batch)
}

fn split(graphs: &[&Graph], outputs: &ort::session::SessionOutputs) -> Result<Vec<Prediction>> {
    let value = |name: &str| outputs[name].try_extract_tensor::<f32>();
    let (shape, mut logits) = value("color_logits")?;
    let (_, chromatic) = value("chromatic")?;
    let (_, families) = value("graph_type_logits")?;
    let (_, difficulty) = value("difficulty")?;
    let num_columns = shape[1] as usize;
    let predictions = graphs.iter().enumerate().map(|(index, graph)| {
        let (own, rest) = logits.split_at(graph.num_nodes() * num_columns);
        logits = rest;
        Prediction {
            logits: own.to_vec(),
            num_columns,
            chromatic: chromatic[index],
            family_logits: std::array::from_fn(|family| families[index * FAMILIES.len() + family]),
            difficulty: difficulty[index],
        }
    });
    Ok(predictions.collect())
}

fn environment(library: Option<PathBuf>) -> Result<Environment> {
    let mut environment = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = environment.as_ref() {
        return Ok(environment.clone());
    }
    let path = library
        .or_else(|| std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()).map(PathBuf::from))
        .unwrap_or_else(|| {
            format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX).into()
        });
    disable_telemetry();
    let builder = ort::init_from(&path).map_err(|error| Error::Library { path, reason: error.to_string() })?;
    Ok(environment.insert(builder.with_name("coloring-gnn").with_telemetry(false).build()?).clone())
}

/// From 1.29 on, ONNX Runtime reads the variable when its environment is made, and then writes a device id and looks up
/// a host of Microsoft. `with_telemetry(false)` comes too late for that. What the user has set stays.
#[expect(unsafe_code, reason = "only the environment variable stops it, and Rust has no safe way to set one")]
fn disable_telemetry() {
    const VARIABLE: &str = "ORT_DISABLE_TELEMETRY";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: Rust locks the environment; C code of the program must not read or change it in another thread
        // meanwhile. `Options` says so. A program that has set the variable does not get here.
        unsafe { std::env::set_var(VARIABLE, "1") };
    }
}

fn expect_contract(session: &Session) -> std::result::Result<(), String> {
    let (inputs, optional) = (session.inputs().iter(), session.overridable_initializers());
    let inputs = inputs.map(|tensor| tensor.name()).chain(optional.iter().map(|tensor| tensor.name()));
    let outputs = session.outputs().iter().map(|tensor| tensor.name());
    for (what, found, expected) in
        [("inputs", inputs.collect::<Vec<_>>(), &INPUTS[..]), ("outputs", outputs.collect(), &OUTPUTS)]
    {
        if let Some(missing) = expected.iter().find(|name| !found.contains(name)) {
            return Err(format!("is no coloring network, its {what} are {} without {missing}", found.join(", ")));
        }
    }
    Ok(())
}

/// The first of the largest.
fn argmax(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, place| if scores[place] > scores[best] { place } else { best })
}
