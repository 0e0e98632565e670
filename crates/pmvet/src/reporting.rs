//! Filters findings, keeps them in the run's folder, and shows them.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use pmvet_engines::lab::Witness;
use pmvet_engines::promises::Promise;
use pmvet_events::FileId;
use pmvet_findings::baseline::Baseline;
use pmvet_findings::dedup::Dedup;
use pmvet_findings::suppress::{Suppress, Suppressions};
use pmvet_findings::token::Token;
use pmvet_findings::{Coverage, Evidence, FailurePointTree, Finding, Phase, Run, Severity, Sources, jsonl};
use pmvet_report::Exporter;
use pmvet_report::html::Html;
use pmvet_report::json::Json;
use pmvet_report::junit::Junit;
use pmvet_report::sarif::Sarif;
use pmvet_report::terminal::{self, Terminal};
use pmvet_target::crash::Patch;
use serde::{Deserialize, Serialize};

use crate::cli::{self, Color, FailOn, SummaryFormat};
use crate::exit::{Error, Exit};
use crate::files;
use crate::run_folder::{RunFolder, RunInfo, Text};
use crate::trend;

/// The results of a run.
pub(crate) struct Results<'a> {
    pub(crate) folder: &'a RunFolder,
    pub(crate) info: &'a RunInfo,
    pub(crate) findings: Vec<Finding>,
    /// What the configuration hides.
    pub(crate) suppress: Vec<Suppress>,
    pub(crate) witnesses: HashMap<String, Witness>,
    pub(crate) coverage: Coverage,
    pub(crate) tree: Option<FailurePointTree>,
    pub(crate) recovery_tree: Option<FailurePointTree>,
    pub(crate) engines: Vec<String>,
    pub(crate) seconds: f64,
    pub(crate) phases: Vec<Phase>,
}

/// `witnesses.json`: by the hash of the crash image.
pub(crate) type Witnesses = HashMap<String, Saved>;

/// A witness as stored in files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recording: Option<String>,
    seq: Option<u64>,
    /// File number, offset, bytes in hexadecimal digits.
    patches: Vec<(u32, u64, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promise: Option<Promise>,
}

/// Keeps the results in the run's folder and shows them. Returns the exit code.
pub(crate) fn report(results: Results<'_>, how: &cli::Reporting) -> Result<Exit, Error> {
    let (sources, folder) = (sources(), results.folder);
    let run = keep(results, how, &sources)?;
    export(&run, &sources, how, folder);
    let unsaved = folder.take_unsaved();
    // `pmvet show` may not have the rest of a run that is not kept.
    let brief = unsaved.is_empty() && !how.full_stacks;
    let shown = show(&run, &sources, how, brief, folder.path.parent());
    for error in &unsaved {
        eprintln!("pmvet: {error}");
    }
    if !unsaved.is_empty() {
        eprintln!(
            "pmvet: this run is not kept as a whole, so commands that need it, such as `show`, `replay` and `diff`, may fail. If a disk \
             is full, free some space or name another place with --runs, and run again"
        );
    }
    shown?;
    Ok(match (run.fails(severity(how.fail_on), how.pedantic), unsaved.is_empty()) {
        // Findings matter more than a failure to keep them.
        (true, _) => Exit::Findings,
        (false, true) => Exit::Ok,
        (false, false) => Exit::Internal,
    })
}

/// Filters the results, and keeps them in the run's folder.
pub(crate) fn keep(results: Results<'_>, how: &cli::Reporting, sources: &Sources) -> Result<Run, Error> {
    let mut dedup = Dedup::new(sources);
    for finding in results.findings {
        dedup.add(finding);
    }
    let mut findings = dedup.finish(&results.folder.id);
    // Only findings whose images the run has kept get a token.
    for finding in &mut findings {
        let of_this_run = finding.replay.as_ref().is_some_and(|token| is_of(token, &results.folder.id));
        if of_this_run && !image_of(finding).is_some_and(|image| results.witnesses.contains_key(image)) {
            finding.replay = None;
        }
    }
    let mut suppressions = suppressions(results.suppress, how.suppressions.as_deref())?;
    suppressions.apply(&mut findings);
    let known = match &how.baseline {
        Some(path) => {
            let text = read(path, "--baseline")?;
            let baseline =
                Baseline::parse(&text).map_err(|e| Error::Usage(format!("--baseline: {}: {e}", path.display())))?;
            baseline.known(&findings)
        }
        None => Default::default(),
    };
    let folder = results.folder;
    // Keep first what a replay needs: if that fails, findings get no token.
    if !folder.keep_json("witnesses.json", &needed(&findings, &results.witnesses)) {
        forget_replays(&mut findings, &folder.id);
    }
    if !folder.kept(save(&findings, folder)) {
        forget_replays(&mut findings, &folder.id);
    }
    // If no recovery has worked, none was tried.
    let tried = results.info.usual.is_some();
    let run = Run {
        id: folder.id.clone(),
        command: readable(&results.info.command),
        setup: results.info.setup.clone(),
        recover: if tried { readable(&results.info.recover) } else { Vec::new() },
        oracle: results.info.oracle.as_deref().filter(|_| tried).map(readable).unwrap_or_default(),
        version: results.info.version.clone(),
        versions: Default::default(),
        seed: None,
        engines: results.engines,
        started: Some(crate::run_folder::rfc3339(results.info.started)),
        seconds: results.seconds,
        phases: results.phases,
        coverage: results.coverage,
        findings,
        known,
        suppressed: suppressions.used(),
        unused_suppressions: suppressions.unused(),
        tree: results.tree,
        recovery_tree: results.recovery_tree,
    };
    folder.keep_json("report.json", &run);
    Ok(run)
}

fn readable(words: &[Text]) -> Vec<String> {
    words.iter().map(|word| word.0.to_string_lossy().into_owned()).collect()
}

fn save(findings: &[Finding], folder: &RunFolder) -> Result<(), Error> {
    let mut lines = Vec::new();
    jsonl::write(findings, &mut lines).map_err(|source| Error::Output {
        action: "write",
        what: "findings".into(),
        source,
    })?;
    folder.write("findings.jsonl", &lines)
}

/// Takes back the tokens of this run.
fn forget_replays(findings: &mut [Finding], run: &str) {
    let of_run = |finding: &&mut Finding| finding.replay.as_ref().is_some_and(|text| is_of(text, run));
    findings.iter_mut().filter(of_run).for_each(|finding| finding.replay = None);
}

/// Whether a token leads to this run.
fn is_of(token: &str, run: &str) -> bool {
    token.parse::<Token>().is_ok_and(|token| token.run == run)
}

pub(crate) fn severity(fail_on: FailOn) -> Severity {
    match fail_on {
        FailOn::Error => Severity::Error,
        FailOn::Warning => Severity::Warning,
        FailOn::Performance => Severity::Performance,
    }
}

fn show(run: &Run, sources: &Sources, how: &cli::Reporting, brief: bool, runs: Option<&Path>) -> Result<(), Error> {
    let exporter: Box<dyn Exporter> = match how.format {
        SummaryFormat::Human => {
            Box::new(Terminal { brief, pedantic: how.pedantic, ..terminal(how.color, how.full_stacks, runs) })
        }
        SummaryFormat::Json => Box::new(Json),
    };
    let mut out = io::stdout().lock();
    match exporter.export(run, sources, &mut out).and_then(|()| out.flush()) {
        // The reader has closed the pipe.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(Error::Output { action: "write", what: "standard output".into(), source }),
        Ok(()) => Ok(()),
    }
}

/// The printer for standard output. `runs` is where the run is kept.
pub(crate) fn terminal(color: Color, full_stacks: bool, runs: Option<&Path>) -> Terminal {
    let color = match color {
        Color::Auto => terminal::Color::Auto,
        Color::Always => terminal::Color::Always,
        Color::Never => terminal::Color::Never,
    };
    let columns = io::stdout().is_terminal().then(crate::system::columns).flatten();
    let runs = runs.and_then(unusual_runs);
    Terminal { full_stacks, runs, ..Terminal::new(color, columns, |name| std::env::var_os(name)) }
}

/// The value of `--runs` for commands about runs in this folder, if they need it.
fn unusual_runs(runs: &Path) -> Option<String> {
    let runs = runs.canonicalize().ok()?;
    let here = std::env::current_dir().ok()?;
    if Path::new(cli::RUNS).canonicalize().is_ok_and(|usual| usual == runs) {
        return None;
    }
    Some(runs.strip_prefix(here).unwrap_or(&runs).display().to_string())
}

/// Writes the formats that the user asked for. Errors are noted, and printed after the findings.
fn export(run: &Run, sources: &Sources, how: &cli::Reporting, folder: &RunFolder) {
    let junit = Junit { fail_on: severity(how.fail_on), pedantic: how.pedantic };
    let sarif = Sarif { pedantic: how.pedantic, ..Sarif::default() };
    let exports: [(&Option<PathBuf>, &dyn Exporter); 3] =
        [(&how.export_json, &Json), (&how.export_sarif, &sarif), (&how.export_junit, &junit)];
    for (path, exporter) in exports {
        if let Some(path) = path {
            folder.kept(write(path, exporter, run, sources));
        }
    }
    if let Some(path) = &how.export_html {
        folder.kept(write(path, &page(folder, run), run, sources));
    }
}

/// The HTML page of a run, which compares it with earlier runs.
pub(crate) fn page(folder: &RunFolder, run: &Run) -> Html {
    Html { earlier: trend::earlier_runs(folder, run), ..Html::default() }
}

/// Writes a run in one format.
pub(crate) fn write(path: &Path, exporter: &dyn Exporter, run: &Run, sources: &Sources) -> Result<(), Error> {
    files::replace(path, |mut out| exporter.export(run, sources, &mut out)).map_err(|source| Error::Output {
        action: "write",
        what: path.display().to_string(),
        source,
    })
}

/// Source files are also looked for in the current folder.
pub(crate) fn sources() -> Sources {
    Sources::new(std::env::current_dir())
}

fn suppressions(mut entries: Vec<Suppress>, path: Option<&Path>) -> Result<Suppressions, Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Listed {
        #[serde(default)]
        suppress: Vec<Suppress>,
    }
    if let Some(path) = path {
        let text = read(path, "--suppressions")?;
        let listed: Listed = toml::from_str(&text)
            .map_err(|e| Error::Usage(format!("--suppressions: {}: {}", path.display(), e.message())))?;
        entries.extend(listed.suppress);
    }
    Suppressions::new(entries).map_err(|e| Error::Usage(e.to_string()))
}

fn read(path: &Path, flag: &str) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| Error::Usage(format!("{flag}: {}: {e}", path.display())))
}

/// The witnesses that findings refer to.
pub(crate) fn needed<'a>(
    findings: impl IntoIterator<Item = &'a Finding>,
    witnesses: &HashMap<String, Witness>,
) -> Witnesses {
    let images = findings.into_iter().filter_map(image_of);
    images.filter_map(|image| Some((image.to_owned(), witnesses.get(image)?.into()))).collect()
}

impl From<&Witness> for Saved {
    fn from(witness: &Witness) -> Self {
        let patches = witness.patches.iter().map(|p| (p.file.0, p.offset, HEXLOWER.encode(&p.bytes))).collect();
        Self { recording: witness.recording.clone(), seq: witness.seq, patches, promise: witness.promise.clone() }
    }
}

impl Saved {
    /// Nothing if it is damaged.
    pub(crate) fn witness(self) -> Option<Witness> {
        let patches = self.patches.into_iter().map(|(file, offset, hex)| {
            let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok()?;
            Some(Patch { file: FileId(file), offset, bytes })
        });
        Some(Witness {
            recording: self.recording,
            seq: self.seq,
            patches: patches.collect::<Option<_>>()?,
            promise: self.promise,
        })
    }
}

/// The name of the crash image that proves a finding.
pub(crate) fn image_of(finding: &Finding) -> Option<&str> {
    match &finding.evidence {
        Evidence::Crash { image, .. } => Some(&image.hash),
        _ => None,
    }
}

/// The witness of a finding of an earlier run.
pub(crate) fn witness(folder: &RunFolder, image: &str) -> Result<Witness, Error> {
    let path = folder.file("witnesses.json");
    let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|e| bad(&e))?;
    let mut all: Witnesses = serde_json::from_str(&text).map_err(|e| bad(&e))?;
    let saved = all.remove(image).ok_or_else(|| bad(&"it does not have this finding"))?;
    saved.witness().ok_or_else(|| bad(&"damaged bytes"))
}
