//! 100,000 raw findings: how long dedup and all exports take, and how much memory. `make bench` runs it.
//!
//! `many_findings [RAW] [DISTINCT] [FOLDER]`: the exports go to the folder, if there is one.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use pmvet_findings::{Sources, dedup::Dedup};
use pmvet_report::{Exporter, html::Html, json::Json, junit::Junit, sarif::Sarif, terminal::Terminal};

#[path = "../tests/common/mod.rs"]
mod common;

/// Counts what is written to it.
struct Meter<W>(W, u64);

impl<W: Write> Write for Meter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1 += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (raw, distinct): (usize, usize) = (number(100_000), number(10_000));
    let folder = arguments.next().map(PathBuf::from);

    let sources = sources();
    let samples = common::samples();
    let begin = Instant::now();
    let cpu_before = cpu_seconds();
    let mut dedup = Dedup::new(&sources);
    for n in 0..raw {
        let n = n % distinct.max(1);
        dedup.add(common::variant(&samples[n % samples.len()], n));
    }
    let findings = dedup.finish("bench");
    println!("{raw} raw findings, {} distinct", findings.len());
    println!("  {:10} {:6.2} s", "dedup", begin.elapsed().as_secs_f64());

    let run = pmvet_findings::Run { findings, ..common::run(Vec::new()) };
    let exporters: [(&str, &dyn Exporter); 5] = [
        ("json", &Json),
        ("sarif", &Sarif::default()),
        ("junit", &Junit::default()),
        ("html", &Html::default()),
        ("terminal", &Terminal::default()),
    ];
    for (name, exporter) in exporters {
        let start = Instant::now();
        let out: Box<dyn Write> = match &folder {
            Some(folder) => Box::new(io::BufWriter::new(fs::File::create(folder.join(file_name(name)))?)),
            None => Box::new(io::sink()),
        };
        let mut meter = Meter(out, 0);
        exporter.export(&run, &sources, &mut meter)?;
        meter.flush()?;
        println!("  {name:10} {:6.2} s {:8.1} MB", start.elapsed().as_secs_f64(), meter.1 as f64 / 1e6);
    }
    let (time, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
    println!("  {:10} {time:6.2} s, CPU {cpu:.2} s, {:.1} MiB at most", "in all", peak_memory_mib());
    Ok(())
}

/// The made-up files all have the same text.
fn sources() -> Sources {
    let files = (0..97).map(|n| (format!("/home/dev/list/src/part{n}.c"), common::LIST_C));
    Sources::in_memory(files).with_root(Path::new("/home/dev/list"))
}

fn file_name(format: &str) -> String {
    match format {
        "sarif" => "findings.sarif".into(),
        "junit" => "findings.xml".into(),
        "terminal" => "findings.txt".into(),
        other => format!("findings.{other}"),
    }
}

/// What this process used of the processor, which other processes do not change.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

fn peak_memory_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
