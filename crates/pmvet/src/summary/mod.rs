//! What a traced run did, in numbers: counted by [`count`], put together here, printed by [`render`] or as JSON.

pub(crate) mod count;
pub(crate) mod render;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use pmvet_events::paths::shown;
use pmvet_events::{ModuleId, Site};
use pmvet_target::Ending;
use pmvet_target::image::ImageComparison;
use pmvet_target::launch::{TargetExit, signal_name};
use serde::{Serialize, Serializer};

use crate::kinds::{self, Class};
use count::{EventCounter, FileCount, SiteCount, ThreadCount, Traffic};

#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) pmvet: &'static str,
    pub(crate) command: Vec<String>,
    pub(crate) target: TargetSummary,
    /// The signal that asked pmvet to stop.
    pub(crate) interrupted: Option<&'static str>,
    pub(crate) exit_code: u8,
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) native: Option<Native>,
    pub(crate) events: u64,
    #[serde(serialize_with = "as_map")]
    pub(crate) kinds: Vec<(&'static str, u64)>,
    pub(crate) files: Vec<File>,
    pub(crate) processes: u64,
    pub(crate) threads: Vec<ThreadSummary>,
    pub(crate) sites: Vec<HotSite>,
    pub(crate) lost_events: u64,
    pub(crate) interrupted_threads: u64,
    pub(crate) trace: Option<SavedTrace>,
    pub(crate) notes: Vec<String>,
}

/// How the target's first process ended: one of the two.
#[derive(Debug, Serialize)]
pub(crate) struct TargetSummary {
    pub(crate) ended: String,
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl From<TargetExit> for TargetSummary {
    fn from(exit: TargetExit) -> Self {
        let (status, signal) = match exit {
            TargetExit::Status(status) => (Some(status), None),
            TargetExit::Signal(signal) => (None, Some(signal)),
        };
        Self { ended: exit.to_string(), status, signal }
    }
}

/// The same program without pmvet.
#[derive(Debug, Serialize)]
pub(crate) struct Native {
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) slowdown: f64,
    pub(crate) ended: String,
    /// It ran without input, since that of the first run cannot be read twice.
    pub(crate) without_input: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) unlinked: bool,
    pub(crate) mappings: Vec<Mapping>,
    /// How often it was mapped; only the first mappings are listed.
    pub(crate) mapped: u64,
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
    pub(crate) image: Option<ImageSummary>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Mapping {
    #[serde(serialize_with = "as_hex")]
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) writable: bool,
}

/// What the comparison of a file with its rebuilt image found.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub(crate) enum ImageSummary {
    Same { bytes: u64 },
    Differs { offset: u64, image: u8, file: u8 },
    Size { image: u64, file: u64 },
    NotChecked { why: String },
}

impl ImageSummary {
    pub(crate) fn is_mismatch(&self) -> bool {
        matches!(self, ImageSummary::Differs { .. } | ImageSummary::Size { .. })
    }
}

impl From<ImageComparison> for ImageSummary {
    fn from(verdict: ImageComparison) -> Self {
        match verdict {
            ImageComparison::Same { bytes } => ImageSummary::Same { bytes },
            ImageComparison::Differs { offset, image, file } => ImageSummary::Differs { offset, image, file },
            ImageComparison::Size { image, file } => ImageSummary::Size { image, file },
            ImageComparison::Unreadable(why) => ImageSummary::NotChecked { why },
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct ThreadSummary {
    pub(crate) thread: usize,
    pub(crate) process: u32,
    pub(crate) os_thread: u32,
    pub(crate) events: u64,
    pub(crate) stores: u64,
    pub(crate) loads: u64,
    pub(crate) rmw: u64,
    pub(crate) flushes: u64,
    pub(crate) fences: u64,
    /// Locks taken.
    pub(crate) locks: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct HotSite {
    pub(crate) count: u64,
    #[serde(serialize_with = "as_map")]
    pub(crate) kinds: Vec<(&'static str, u64)>,
    pub(crate) frames: Vec<FrameSummary>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FrameSummary {
    pub(crate) function: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) module: Option<String>,
    pub(crate) offset: u64,
    pub(crate) inlined: bool,
    #[serde(skip)]
    pub(crate) text: String,
}

/// A trace file that was written.
#[derive(Debug, Serialize)]
pub(crate) struct SavedTrace {
    pub(crate) path: String,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

/// Facts that only the code that ran the target knows.
#[derive(Debug)]
pub(crate) struct RunFacts<'a> {
    pub(crate) command: &'a [std::ffi::OsString],
    pub(crate) ending: &'a Ending,
    pub(crate) interrupted: Option<i32>,
    pub(crate) cpu: Duration,
    pub(crate) native: Option<Native>,
    /// In the order of the files' numbers.
    pub(crate) verdicts: Option<Vec<ImageComparison>>,
    pub(crate) trace: Option<SavedTrace>,
    pub(crate) notes: Vec<String>,
    pub(crate) top: usize,
}

impl Summary {
    pub(crate) fn new(mut counter: EventCounter, run: RunFacts<'_>) -> Self {
        let kinds = named(&kinds::NAMES, &counter.kinds());
        let mut notes = run.notes;
        let sites = hottest(&mut counter, run.top, &mut notes);
        notes.extend(counter.unsupported.iter().map(|(why, count)| {
            format!("{count} unsupported accesses to PM ({why}): the bytes they touch are not known from the events")
        }));
        if counter.volatile_flushes > 0 {
            notes.push(format!("{} flushes of memory that is not PM", counter.volatile_flushes));
        }
        let loss = run.ending.loss;
        if loss.interrupted > 0 {
            notes.push(format!("{} threads were killed during a store: its bytes are unknown", loss.interrupted));
        }
        if loss.events > 0 {
            notes.push(format!("{} events were lost: a thread was killed before it could report them", loss.events));
        }
        if run.ending.places_lost {
            notes
                .push("some events have no place: the target has more sites or call paths than the tables hold".into());
        }
        let files = with_verdicts(counter.files, run.verdicts);
        let threads = counter.threads.iter().enumerate();
        let threads: Vec<ThreadSummary> =
            threads.map(|(id, t)| ThreadSummary::new(id, t)).filter(|t| t.events > 0).collect();
        Self {
            pmvet: env!("CARGO_PKG_VERSION"),
            command: run.command.iter().map(|word| shown(word).to_string()).collect(),
            target: run.ending.exit.into(),
            interrupted: run.interrupted.map(signal_name),
            exit_code: 0,
            wall_seconds: run.ending.time.as_secs_f64(),
            cpu_seconds: run.cpu.as_secs_f64(),
            native: run.native,
            events: kinds.iter().map(|(_, count)| count).sum(),
            kinds,
            files,
            processes: counter.processes,
            threads,
            sites,
            lost_events: loss.events,
            interrupted_threads: loss.interrupted,
            trace: run.trace,
            notes,
        }
    }

    pub(crate) fn images(&self) -> impl Iterator<Item = (&File, &ImageSummary)> {
        self.files.iter().filter_map(|file| Some((file, file.image.as_ref()?)))
    }
}

/// Adds verdicts to the files. Files that are counted together share number 0, and get the gravest of the remaining verdicts.
fn with_verdicts(mut counts: Vec<FileCount>, verdicts: Option<Vec<ImageComparison>>) -> Vec<File> {
    let checked = verdicts.is_some();
    let mut verdicts = verdicts.unwrap_or_default().into_iter().map(ImageSummary::from);
    let together = if counts.is_empty() { FileCount::default() } else { counts.remove(0) };
    let known = counts.into_iter().filter(|count| count.path.is_some());
    let mut files: Vec<File> = known.map(|count| File::new(count, verdicts.next())).collect();
    if together.path.is_some() {
        let mut rest: Vec<ImageSummary> = verdicts.collect();
        rest.sort_by_key(ImageSummary::is_mismatch);
        files.push(File::new(together, rest.pop().filter(|_| checked)));
    }
    files
}

impl File {
    fn new(count: FileCount, image: Option<ImageSummary>) -> Self {
        let mapping = |m: &count::Mapping| Mapping { addr: m.addr, len: m.len, offset: m.offset, writable: m.writable };
        Self {
            mappings: count.mappings.iter().map(mapping).collect(),
            traffic: count.traffic(),
            path: count.path.map(|path| shown(&path).to_string()).unwrap_or_default(),
            size: count.size,
            unlinked: count.unlinked,
            mapped: count.mapped,
            image,
        }
    }
}

impl ThreadSummary {
    fn new(thread: usize, count: &ThreadCount) -> Self {
        let of = |class| (0..kinds::COUNT).filter(|&k| Class::of_kind(k) == class).map(|k| count.kinds[k]).sum();
        Self {
            thread,
            process: count.process,
            os_thread: count.os_thread,
            events: count.kinds.iter().sum(),
            stores: of(Class::Store),
            loads: of(Class::Load),
            rmw: of(Class::Rmw),
            flushes: of(Class::Flush),
            fences: of(Class::Fence),
            locks: kinds::parse("acquire").map_or(0, |kind| count.kinds[kind]),
        }
    }
}

/// The sites with the most events, symbolised. Processes that run the same code share its sites.
fn hottest(counter: &mut EventCounter, top: usize, notes: &mut Vec<String>) -> Vec<HotSite> {
    let EventCounter { sites, modules, symbolizer, .. } = counter;
    let mut merged: HashMap<(Option<&PathBuf>, u64), (Site, SiteCount)> = HashMap::new();
    for count in sites.iter() {
        let Some(site) = count.site else { continue };
        let key = match modules.get(&site.module) {
            Some((base, path)) => (Some(path), site.pc.wrapping_sub(*base)),
            None => (None, site.pc),
        };
        let (_, sum) = merged.entry(key).or_insert((site, SiteCount::default()));
        sum.classes.iter_mut().zip(count.classes).for_each(|(sum, count)| *sum += count);
    }
    let total = |count: &SiteCount| count.classes[..Class::Other as usize].iter().sum::<u64>();
    let mut order: Vec<_> = merged.into_values().filter(|(_, count)| total(count) > 0).collect();
    // The same run must always give the same list.
    order.sort_unstable_by_key(|(site, count)| (std::cmp::Reverse(total(count)), site.module, site.pc));
    order.truncate(top);
    let hot_modules: BTreeSet<ModuleId> = order.iter().map(|(site, _)| site.module).collect();
    let advice: BTreeSet<String> = hot_modules.into_iter().filter_map(|module| symbolizer.advice(module)).collect();
    notes.extend(advice);
    let site = |(site, count): (Site, SiteCount)| HotSite {
        count: total(&count),
        kinds: named(&Class::NAMES, &count.classes),
        frames: symbolizer.frames(site).iter().map(FrameSummary::from).collect(),
    };
    order.into_iter().map(site).collect()
}

impl From<&pmvet_target::symbols::SymbolizedFrame> for FrameSummary {
    fn from(frame: &pmvet_target::symbols::SymbolizedFrame) -> Self {
        Self {
            function: frame.function.clone(),
            source: frame.file.as_ref().map(|file| shown(file).to_string()),
            line: frame.line,
            module: frame.module.as_deref().map(|module| shown(module).to_string()),
            offset: frame.offset,
            inlined: frame.inlined,
            text: frame.to_string(),
        }
    }
}

/// Counts with their names, without zeros.
fn named(names: &[&'static str], counts: &[u64]) -> Vec<(&'static str, u64)> {
    names.iter().copied().zip(counts.iter().copied()).filter(|(_, count)| *count > 0).collect()
}

fn as_map<S: Serializer>(pairs: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}

fn as_hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: Option<&str>) -> FileCount {
        FileCount { path: path.map(PathBuf::from), ..FileCount::default() }
    }

    #[test]
    fn each_file_gets_its_own_verdict() {
        let same = |bytes| ImageComparison::Same { bytes };
        let counts = vec![count(None), count(Some("a")), count(None), count(Some("b"))];
        let files = with_verdicts(counts.clone(), Some(vec![same(1), same(2)]));
        let found: Vec<_> = files.iter().map(|f| (f.path.as_str(), f.image.as_ref().unwrap())).collect();
        assert_eq!(found, [("a", &ImageSummary::Same { bytes: 1 }), ("b", &ImageSummary::Same { bytes: 2 })]);
        assert!(with_verdicts(counts, None).iter().all(|f| f.image.is_none()));
    }

    #[test]
    fn a_mismatch_among_many_files_is_not_lost() {
        let verdicts = vec![
            ImageComparison::Same { bytes: 1 },
            ImageComparison::Size { image: 1, file: 2 },
            ImageComparison::Same { bytes: 3 },
            ImageComparison::Unreadable("gone".into()),
        ];
        let files = with_verdicts(vec![count(Some("rest")), count(Some("a"))], Some(verdicts));
        assert_eq!(files[0].image, Some(ImageSummary::Same { bytes: 1 }));
        assert_eq!(files[1].image, Some(ImageSummary::Size { image: 1, file: 2 }));
    }

    #[test]
    fn the_summary_is_valid_json() {
        let ending = Ending {
            places_lost: true,
            ..Ending::new(TargetExit::Signal(9), Duration::from_secs(1), Default::default())
        };
        let run = RunFacts {
            command: &["p".into(), "".into()],
            ending: &ending,
            interrupted: Some(libc::SIGTERM),
            cpu: Duration::ZERO,
            native: None,
            verdicts: None,
            trace: None,
            notes: Vec::new(),
            top: 3,
        };
        let summary = Summary::new(EventCounter::default(), run);
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&summary).unwrap()).unwrap();
        assert_eq!(json["target"]["signal"], 9);
        assert_eq!(json["target"]["status"], serde_json::Value::Null);
        assert_eq!(json["interrupted"], "SIGTERM");
        assert_eq!(json["notes"].as_array().unwrap().len(), 1);
    }
}
