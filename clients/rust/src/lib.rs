//! Colors graphs: no edge with two equal ends, few colors.
//!
//! ```
//! use coloring_gnn::{Budget, Graph, color};
//!
//! let ring = Graph::from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])?;
//! let coloring = color(&ring, &Budget::seconds(0.1));
//! assert_eq!(coloring.num_colors(), 3);
//! assert_eq!(ring.check(coloring.colors())?, 3); // proper, counted on the graph itself
//! # Ok::<(), coloring_gnn::Error>(())
//! ```
//!
//! [`color`] is the whole search. It is Rust alone, and has the trained rule inside. With the feature `onnxruntime`,
//! which is on by default, `ColoringGnn` calls the network file, which also estimates the number of colors and the
//! difficulty. What the tensors of the file mean stands in the repository's `docs/ONNX.md`, how to use this crate in
//! the README.

#[cfg(feature = "onnxruntime")]
mod calls;
mod coloring;
mod crossover;
mod error;
mod graph;
mod kernels;
#[cfg(feature = "onnxruntime")]
mod model;
mod portfolio;
mod rule;
mod rule_search;

pub use coloring::Coloring;
pub use error::{Error, Result};
pub use graph::{Graph, NUM_FEATURES};
#[cfg(feature = "onnxruntime")]
pub use model::{ColoringGnn, Family, Options, Prediction, Request};
/// The binding to ONNX Runtime: its execution providers go into [`Options`].
#[cfg(feature = "onnxruntime")]
pub use ort;
pub use portfolio::{Budget, color};
pub use rule::{MODEL, Rule};

#[cfg(all(doctest, feature = "onnxruntime"))]
#[doc = include_str!("../README.md")]
struct PageForReaders;
