//! Runs the concurrency bugs of the zoo under `pmvet trace` and prints, as a Markdown table, which of them the lockset
//! engine finds, what it says of the clean variants, and what each of its switches removes.
//!
//!     make -C zoo OUT=/abs/zoo
//!     cargo run --release --example lockset_zoo -- PMVET ZOO-SOURCES /abs/zoo [RUNS [PROGRAM…]]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pmvet_engines::lockset::pm_locks::{Aftermath, Afterwards, LockLeftHeld};
use pmvet_engines::lockset::{Edges, LocksetEngine, LocksetOptions};
use pmvet_events::FileId;
use pmvet_events::event::{Event, What};
use pmvet_events::file::TraceReader;
use pmvet_events::spaces::AddressSpaces;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(serde::Deserialize)]
struct Manifest {
    program: Program,
    #[serde(default)]
    bug: Vec<Bug>,
}

#[derive(serde::Deserialize)]
struct Program {
    name: String,
}

#[derive(serde::Deserialize)]
struct Bug {
    id: u32,
    class: String,
    engines: Vec<String>,
    #[serde(default)]
    workload: Vec<String>,
}

/// The default settings, and those to compare with them.
fn settings() -> Vec<(&'static str, LocksetOptions)> {
    let with = |change: fn(&mut LocksetOptions)| {
        let mut options = LocksetOptions::default();
        change(&mut options);
        options
    };
    vec![
        ("default", LocksetOptions::default()),
        ("no initialisation removal", with(|o| o.init_removal = false)),
        ("no inferred locks", with(|o| o.infer_locks = false)),
        ("no allocators", with(|o| o.allocators = false)),
        ("no reader window", with(|o| o.reader_window = false)),
        ("no edges", with(|o| o.edges = Edges::NONE)),
        ("predict lock-free", with(|o| o.lock_free = true)),
        ("as published", LocksetOptions::as_published()),
    ]
}

struct Zoo {
    pmvet: PathBuf,
    sources: PathBuf,
    built: PathBuf,
}

struct Trace {
    file: PathBuf,
    pool: PathBuf,
    ended_well: bool,
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Nothing is lost if they are gone already.
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.pool);
    }
}

impl Zoo {
    fn source(&self, program: &str) -> PathBuf {
        let c = self.sources.join(program);
        if c.exists() { c } else { self.sources.join("rust").join(program) }
    }

    fn trace(&self, program: &str, variant: &str, args: &[String], image: Option<&[u8]>) -> Result<Trace> {
        let name = format!("pmvet-zoo-{}-{program}-{variant}", std::process::id());
        let pool = Path::new("/dev/shm").join(&name);
        let kind = if image.is_some() { "after" } else { "trace" };
        let file = std::env::temp_dir().join(format!("{name}.{kind}"));
        let _ = fs::remove_file(&pool);
        if let Some(image) = image {
            fs::write(&pool, image)?;
        }
        let mut command = Command::new("timeout");
        command.arg(if image.is_some() { "6" } else { "60" }).arg(&self.pmvet).args(["trace", "--races", "-q"]);
        let config = self.source(program).join("pmvet.toml");
        if config.exists() {
            command.arg("--config").arg(config);
        }
        command
            .arg("--save-trace")
            .arg(&file)
            .arg("--")
            .arg(self.built.join(program).join(variant))
            .arg(&pool)
            .args(args);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        Ok(Trace { file, pool, ended_well: status.success() })
    }

    /// Locks that a restart from a crash finds held and does not free.
    fn left_held(
        &self,
        program: &str,
        variant: &str,
        args: &[String],
        trace: &Trace,
        held: &[LockLeftHeld],
    ) -> Result<usize> {
        let mut left = 0;
        for lock in held {
            let image = image(&trace.file, lock)?;
            let after = self.trace(program, variant, args, Some(&image))?;
            let mut aftermath = Aftermath::new(lock, &after.pool);
            if let Ok(mut reader) = TraceReader::open(&after.file) {
                // A run that hangs is killed, and its trace is cut short.
                while let Ok(Some(event)) = reader.next() {
                    aftermath.event(&event);
                }
            }
            left += usize::from(aftermath.verdict(!after.ended_well) == Afterwards::LeftHeld);
        }
        Ok(left)
    }
}

/// The file of a lock as a crash leaves it, all stores before being persistent.
fn image(trace: &Path, lock: &LockLeftHeld) -> Result<Vec<u8>> {
    let mut reader = TraceReader::open(trace)?;
    let (mut files, mut spaces) = (BTreeMap::<FileId, Vec<u8>>::new(), AddressSpaces::default());
    while let Some(event) = reader.next()? {
        if event.seq >= lock.crash_at && event.what.is_numbered() {
            break;
        }
        spaces.update(&event);
        apply(&event, &spaces, &mut files);
    }
    Ok(files.remove(&lock.word.file).unwrap_or_default())
}

fn apply(event: &Event<'_>, spaces: &AddressSpaces, files: &mut BTreeMap<FileId, Vec<u8>>) {
    let mut store = |addr, value: &[u8]| {
        spaces.locate(event.thread, addr, value.len() as u64, |part| {
            let bytes = files.entry(part.file).or_default();
            let end = part.offset as usize + part.len;
            bytes.resize(bytes.len().max(end), 0);
            bytes[part.offset as usize..end].copy_from_slice(&value[part.first..part.first + part.len]);
        });
    };
    match event.what {
        What::Store { addr, value, .. } => store(addr, value),
        What::Rmw { addr, new, stored: true, .. } => store(addr, new),
        What::FileResize { file, size } => files.entry(file).or_default().resize(size as usize, 0),
        _ => {}
    }
}

fn analyse(trace: &Path, options: LocksetOptions) -> Result<(usize, Vec<LockLeftHeld>)> {
    let mut reader = TraceReader::open(trace)?;
    let mut engine = LocksetEngine::new(options);
    while let Some(event) = reader.next()? {
        engine.event(&event);
    }
    let outcome = engine.finish();
    Ok((outcome.races.len(), outcome.held))
}

/// Reports per setting, races only, and how often the default found anything.
#[derive(Default)]
struct Row {
    reports: Vec<usize>,
    found: usize,
    runs: usize,
}

fn row(zoo: &Zoo, program: &str, variant: &str, args: &[String], locks: bool, runs: usize) -> Result<Row> {
    let mut row = Row { reports: vec![0; settings().len()], ..Row::default() };
    for run in 0..runs {
        let trace = zoo.trace(program, variant, args, None)?;
        let (mut found, held) = analyse(&trace.file, LocksetOptions::default())?;
        row.reports[0] = row.reports[0].max(found);
        if run == 0 {
            for (n, (_, options)) in settings().into_iter().enumerate().skip(1) {
                row.reports[n] = analyse(&trace.file, options)?.0;
            }
        }
        if locks {
            found = zoo.left_held(program, variant, args, &trace, &held)?;
        }
        row.found += usize::from(found > 0);
        row.runs += 1;
    }
    Ok(row)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut path = || args.next().map(PathBuf::from).ok_or("PMVET, ZOO-SOURCES and ZOO-BINARIES are needed");
    let zoo = Zoo { pmvet: path()?, sources: path()?, built: path()? };
    let runs = args.next().map_or(Ok(1), |n| n.parse())?;
    let wanted: Vec<String> = args.collect();
    let mut manifests = Vec::new();
    for folder in [&zoo.sources, &zoo.sources.join("rust")] {
        for entry in fs::read_dir(folder)? {
            if let Ok(text) = fs::read_to_string(entry?.path().join("manifest.toml")) {
                manifests.push(toml::from_str::<Manifest>(&text)?);
            }
        }
    }
    manifests.sort_by(|a, b| a.program.name.cmp(&b.program.name));
    let names: Vec<_> = settings().into_iter().map(|(name, _)| name).collect();
    println!("| variant | found | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    let print = |name: String, row: &Row| {
        let reports: Vec<_> = row.reports.iter().map(usize::to_string).collect();
        println!("| {name} | {} of {} | {} |", row.found, row.runs, reports.join(" | "));
    };
    for Manifest { program: Program { name }, bug } in manifests {
        let racy: Vec<_> = bug.iter().filter(|b| b.engines.iter().any(|e| e == "lockset")).collect();
        let Some(first) = racy.first() else { continue };
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let locks = racy.iter().any(|b| b.class == "lock-left-held");
        print(format!("{name} clean"), &row(&zoo, &name, "clean", &first.workload, false, runs)?);
        if locks {
            print(format!("{name} clean, locks"), &row(&zoo, &name, "clean", &first.workload, true, runs)?);
        }
        for bug in racy {
            let variant = format!("bug-{}", bug.id);
            let row = row(&zoo, &name, &variant, &bug.workload, bug.class == "lock-left-held", runs)?;
            print(format!("{name} {}", bug.id), &row);
        }
    }
    Ok(())
}
