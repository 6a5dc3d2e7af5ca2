use std::path::PathBuf;

/// What this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong, with what, and the way out: the messages say what the fields are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    #[error("{path}: cannot be loaded as ONNX Runtime ({reason}); name it in Options::library or ORT_DYLIB_PATH")]
    Library { path: PathBuf, reason: String },
    #[error("{path}: {reason}; name a coloring_gnn.onnx as the trainer exports it")]
    Model { path: PathBuf, reason: String },
    #[error("the graph has no nodes; leave it out")]
    NoNodes,
    #[error("edge {u}-{v} leaves the nodes 0..{num_nodes}; nodes count from 0")]
    Edge { u: usize, v: usize, num_nodes: usize },
    #[error("the adjacency has {found} cells where {num_nodes} nodes need {num_nodes} x {num_nodes}")]
    Adjacency { found: usize, num_nodes: usize },
    /// Lines count from 1.
    #[error("line {line}: {reason}")]
    Dimacs { line: usize, reason: String },
    /// If the colors are those that the network gave, it was shown another graph: look at how the edges were built.
    #[error("the coloring is not proper: {0}")]
    Improper(String),
    #[error("the file has no trained rule; name a coloring_gnn.onnx of version 0.6 or newer")]
    Rule,
    #[error("the weights of crossover in the file are damaged; export it again")]
    Crossover,
    #[cfg(feature = "onnxruntime")]
    #[error("ONNX Runtime: {0}")]
    Runtime(#[from] ort::Error),
}
