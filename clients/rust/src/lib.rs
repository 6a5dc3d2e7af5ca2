//! Colors graphs with `coloring_gnn.onnx`: no edge with two equal ends, few colors.
//!
//! ```
//! use coloring_gnn::{Budget, ColoringGnn, Graph, Options};
//!
//! # fn main() -> coloring_gnn::Result<()> {
//! # let path = std::env::var("COLORING_GNN_MODEL").unwrap();
//! // ONNX Runtime is found through Options::library, ORT_DYLIB_PATH or the system's search path.
//! let mut model = ColoringGnn::open(path, Options::default())?;
//! let ring = Graph::from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])?;
//! let coloring = model.color(&ring, &Budget::one_call())?;
//! assert_eq!(coloring.num_colors(), 3);
//! assert_eq!(ring.check(coloring.colors())?, 3); // proper, counted on the graph itself
//! # Ok(())
//! # }
//! ```
//!
//! [`ColoringGnn::color`] is the whole search; [`ColoringGnn::predict`] is one call of the network with all that it
//! says, for solvers that want a start: a coloring, an order of the nodes, a bound. What the tensors of the file mean
//! stands in the repository's `docs/ONNX.md`, how to use this crate in the README.

mod coloring;
mod error;
mod graph;
mod model;
mod search;

pub use coloring::Coloring;
pub use error::{Error, Result};
pub use graph::{Graph, NUM_FEATURES};
pub use model::{ColoringGnn, Family, Options, Prediction, Request};
/// The binding to ONNX Runtime: its execution providers go into [`Options`].
pub use ort;
pub use search::Budget;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PageForReaders;
