//! Colors a DIMACS file: the solution goes to standard output, what is found to standard error.

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use coloring_gnn::{Budget, Coloring, Graph, Rule};

const USAGE: &str = "usage: coloring-gnn-rs color GRAPH.col [--seconds S] [--threads T] [--seed N] [--target COLORS] \
                     [--model FILE.onnx] [--start FILE.sol]";

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(coloring) => {
            print!("{}", coloring.to_dimacs());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Coloring, Box<dyn std::error::Error>> {
    let (mut budget, mut rule, mut path, mut start) = (Budget::seconds(10.0), Rule::default(), None, None);
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some("color") {
        return Err(USAGE.into());
    }
    while let Some(name) = arguments.next() {
        if !name.starts_with("--") && path.is_none() {
            path = Some(name);
            continue;
        }
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--seconds" => {
                let seconds = number::<f64>(&name, &value)?;
                let is_time = (0.0..1e9).contains(&seconds);
                budget.time = Budget::seconds(is_time.then_some(seconds).ok_or("--seconds is 0 to 1e9")?).time;
            }
            "--threads" => budget.threads = number(&name, &value)?,
            "--seed" => budget.seed = number(&name, &value)?,
            "--target" => budget.target = number(&name, &value)?,
            "--model" => rule = of_file(&value, Rule::from_onnx(&of_file(&value, std::fs::read(&value))?))?,
            "--start" => start = Some(value),
            _ => return Err(USAGE.into()),
        }
    }
    let path = path.ok_or(USAGE)?;
    let graph = of_file(&path, Graph::from_dimacs(of_file(&path, std::fs::read(&path))?))?;
    let solution =
        |file: String| of_file(&file, Coloring::from_dimacs(&graph, &of_file(&file, std::fs::read_to_string(&file))?));
    let (start, begin) = (start.map(solution).transpose()?, Instant::now());
    let best = rule.color_from(&graph, &budget, start.as_ref(), |coloring, method| {
        eprintln!("{:6.2} s: {} colors ({method})", begin.elapsed().as_secs_f64(), coloring.num_colors());
    });
    eprintln!("{path}: {} colors, at least {} needed", best.num_colors(), graph.clique_size());
    Ok(best)
}

/// Names the file in an error.
fn of_file<T>(path: &str, result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|error| format!("{path}: {error}"))
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} is a number, not {value:?}"))
}
