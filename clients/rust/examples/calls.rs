//! Colors a DIMACS file by calls of the network: `calls MODEL GRAPH.col [SECONDS]`, one call without SECONDS.
//! The solution goes to standard output, what was found to standard error.

use std::process::ExitCode;

use coloring_gnn::{Budget, ColoringGnn, Graph, Options};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match color(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn color(arguments: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let (model, path, seconds) = match *arguments {
        [model, path] => (model, path, "0"),
        [model, path, seconds] => (model, path, seconds),
        _ => return Err("calls MODEL GRAPH.col [SECONDS]".into()),
    };
    let seconds = seconds.parse().ok().filter(|seconds| (0.0..1e9).contains(seconds));
    let budget = Budget::seconds(seconds.ok_or("SECONDS is a number, 0 for a single call")?);
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let graph = Graph::from_dimacs(&text).map_err(|error| format!("{path}: {error}"))?;
    let coloring = ColoringGnn::open(model, Options::default())?.color(&graph, &budget)?;
    eprintln!("{path}: {} colors, at least {} needed", coloring.num_colors(), graph.clique_size());
    print!("{}", coloring.to_dimacs());
    Ok(())
}
