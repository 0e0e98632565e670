//! `pmvet merge`: the results of the shards of a run as those of one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use pmvet_engines::check::share::join_shares;
use pmvet_findings::suppress::Suppress;
use pmvet_findings::{Coverage, Finding, Run};

use super::check::{OTHER_SHARDS, Shares};
use crate::cli;
use crate::exit::{Error, Exit};
use crate::files;
use crate::recovery::{self, SHARD};
use crate::reporting::{self, Results};
use crate::run_folder::{LEFT, RunFolder, RunInfo};
use pmvet_engines::lab::Witness;

/// What every shard counts as a whole: they all record the same run, and the same recoveries.
const SHARED: &[&str] = &["failure points", "failure points in recovery"];
/// What campaigns count only for themselves: their runs. They take test cases over from each other, so the rest is nearly the same in
/// all of them, and there is at least as much as in one.
const OF_ONE_CAMPAIGN: &[&str] = &["runs", "runs that were cut where their input ended", "stable test cases"];

/// A run to be joined with others.
struct Shard {
    folder: RunFolder,
    info: RunInfo,
    run: Run,
    /// Nothing if it was not made with `--shard`.
    shares: Option<Shares>,
}

impl Shard {
    fn open(folder: RunFolder) -> Result<Self, Error> {
        let (info, run) = (folder.read_info()?, folder.report()?);
        let shares = match info.settings.contains_key(SHARD) {
            true => Some(folder.read_json(Shares::FILE)?),
            false => None,
        };
        Ok(Self { folder, info, run, shares })
    }
}

pub(crate) fn run(arguments: &cli::Merge) -> Result<Exit, Error> {
    join_runs(&arguments.shards, &arguments.runs, &arguments.reporting, |_| ())
}

/// Whether the run in this folder can be joined with others.
pub(super) fn check_shard(folder: &str) -> Result<(), Error> {
    Shard::open(RunFolder::named(Path::new(""), folder)?).map(drop)
}

/// Joins runs and reports, together with what the caller adds.
pub(super) fn join_runs(
    names: &[String],
    runs: &Path,
    reporting: &cli::Reporting,
    complete: impl FnOnce(&mut Results<'_>),
) -> Result<Exit, Error> {
    let mut shards = Vec::new();
    let mut known = HashSet::new();
    for name in names {
        let folder = RunFolder::named(runs, name)?;
        if !known.insert(folder.path.clone()) {
            return Err(Error::Usage(format!("`{name}` is named twice; each shard counts once")));
        }
        shards.push(Shard::open(folder)?);
    }
    let Some(Shard { info: first, .. }) = shards.first() else {
        return Err(Error::Usage("name the runs to join".into()));
    };
    if let Some(other) = shards.iter().position(|shard| plan(&shard.info) != plan(first)) {
        let (a, b) = (&names[0], &names[other]);
        return Err(Error::Usage(format!(
            "`{a}` and `{b}` are no shards of one run: their command lines or options differ"
        )));
    }
    let parts: Vec<Option<(u32, u32)>> = shards.iter().map(|shard| part(&shard.info)).collect();
    if let Some((k, n)) = parts.iter().enumerate().find_map(|(i, part)| part.filter(|p| parts[..i].contains(&Some(*p))))
    {
        return Err(Error::Usage(format!("shard {k}/{n} is named twice; each counts once")));
    }
    let coverage = coverage(shards.iter().map(|shard| &shard.run), &parts);
    let is_whole = !coverage.not_covered.iter().any(|text| text.starts_with(MISSING));
    let mut info = RunInfo { complete: is_whole && shards.iter().all(|shard| shard.info.complete), ..first.clone() };
    info.settings.remove(SHARD);
    info.settings.insert(recovery::MERGED.into(), names.join(" "));
    let folder = RunFolder::create(runs)?;
    folder.keep_info(&info);
    let engines: BTreeSet<String> = shards.iter().flat_map(|shard| shard.run.engines.clone()).collect();
    // The longest, since shards run at the same time.
    let seconds = shards.iter().map(|shard| shard.run.seconds).fold(0.0, f64::max);
    let mut witnesses = WitnessOrigins::default();
    for (number, shard) in (1..).zip(&mut shards) {
        witnesses.add(number, shard);
    }
    let (findings, suppress) = join(shards);
    let mut results = Results {
        folder: &folder,
        info: &info,
        coverage,
        seconds,
        witnesses: witnesses.bring(&findings, &folder),
        findings,
        suppress,
        tree: None,
        recovery_tree: None,
        engines: engines.into_iter().collect(),
        phases: Vec::new(),
    };
    complete(&mut results);
    reporting::report(results, reporting)
}

/// The findings of all shards, as one run would have found them, and what the configuration hides of them.
fn join(shards: Vec<Shard>) -> (Vec<Finding>, Vec<Suppress>) {
    let (mut suppress, mut joint, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for shard in shards {
        match shard.shares {
            Some(shares) => {
                suppress = shares.suppress;
                joint.extend(shares.shares);
            }
            None => others.extend(shard.run.findings),
        }
    }
    let mut findings = join_shares(joint);
    findings.extend(others);
    // The token would lead to the run of a shard.
    findings.iter_mut().for_each(|finding| finding.replay = None);
    (findings, suppress)
}

/// Where the witnesses are, by the hash of the crash image: the number and folder of a shard, and the witness there.
#[derive(Default)]
struct WitnessOrigins(HashMap<String, (usize, std::path::PathBuf, Witness)>);

impl WitnessOrigins {
    fn add(&mut self, number: usize, shard: &mut Shard) {
        let saved = match &mut shard.shares {
            Some(shares) => std::mem::take(&mut shares.witnesses),
            None => shard.folder.read_json("witnesses.json").unwrap_or_default(),
        };
        for (image, saved) in saved {
            if let Some(witness) = saved.witness() {
                self.0.entry(image).or_insert((number, shard.folder.path.clone(), witness));
            }
        }
    }

    /// Copies what is needed to replay findings into the folder of the joined run. Findings for which that fails get no token, and the
    /// errors are printed after the findings.
    fn bring(&self, findings: &[Finding], to: &RunFolder) -> HashMap<String, Witness> {
        let mut witnesses = HashMap::new();
        let mut brought: HashMap<String, bool> = HashMap::new();
        for image in findings.iter().filter_map(reporting::image_of) {
            let Some((number, from, witness)) = self.0.get(image) else { continue };
            let shard = format!("shard-{number}");
            let name = witness.recording.as_ref().map_or(shard.clone(), |name| format!("{shard}/{name}"));
            let from_folder = witness.recording.as_ref().map_or(from.clone(), |name| from.join(name));
            let is_there = *brought.entry(name.clone()).or_insert_with(|| {
                let mut shared = ["input", LEFT].into_iter();
                let shared = shared.try_for_each(|name| files::link(&from.join(name), &to.file(name), true));
                to.kept(shared.and_then(|()| files::bring_recording(&from_folder, &to.file(&name))))
            });
            if is_there {
                witnesses.insert(image.to_owned(), Witness { recording: Some(name), ..witness.clone() });
            }
        }
        witnesses
    }
}

/// Prefix of the line that says which shards are missing.
const MISSING: &str = "shards that were not given";

/// What shards of one run have in common.
fn plan(info: &RunInfo) -> (&str, &[crate::run_folder::Text], BTreeMap<&str, &str>) {
    let settings = info.settings.iter().filter(|(name, _)| *name != SHARD);
    (&info.version, &info.command, settings.map(|(name, value)| (name.as_str(), value.as_str())).collect())
}

/// Which shard of how many a run was.
fn part(info: &RunInfo) -> Option<(u32, u32)> {
    let (k, n) = info.settings.get(SHARD)?.split_once('/')?;
    Some((k.parse().ok()?, n.parse().ok()?))
}

fn coverage<'a>(runs: impl Iterator<Item = &'a Run> + Clone, parts: &[Option<(u32, u32)>]) -> Coverage {
    let mut all = Coverage::default();
    let are_campaigns = runs.clone().any(|run| run.engines.iter().any(|engine| engine == "fuzz"));
    let is_shared = |name: &str| match are_campaigns {
        true => !OF_ONE_CAMPAIGN.contains(&name),
        false => SHARED.contains(&name),
    };
    for counter in runs.clone().flat_map(|run| &run.coverage.counters) {
        match all.counters.iter_mut().find(|known| known.name == counter.name) {
            Some(known) if is_shared(&known.name) => known.done = known.done.max(counter.done),
            Some(known) => {
                known.done += counter.done;
                known.of = known.of.zip(counter.of).map(|(a, b)| a + b);
            }
            None => all.counters.push(counter.clone()),
        }
    }
    for text in runs.flat_map(|run| &run.coverage.not_covered) {
        if !text.starts_with(OTHER_SHARDS) && !all.not_covered.contains(text) {
            all.not_covered.push(text.clone());
        }
    }
    let of = parts.iter().flatten().map(|&(_, n)| n).max().unwrap_or(0);
    let is_there = |k: &u32| parts.contains(&Some((*k, of)));
    let missing: Vec<String> = (1..=of).filter(|k| !is_there(k)).map(|k| format!("{k}/{of}")).collect();
    if !missing.is_empty() && !parts.contains(&None) {
        all.not_covered.push(format!("{MISSING}: {}", missing.join(", ")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(points: u64, recoveries: u64, not: &str) -> Run {
        let mut coverage = Coverage::default();
        coverage.count("failure points", points, None);
        coverage.count("recoveries", recoveries, Some(recoveries + 1));
        coverage.not_covered.push(not.into());
        Run { coverage, ..Run::default() }
    }

    #[test]
    fn work_adds_up_and_missing_shards_are_named() {
        let runs = [shard(7, 10, "other orders"), shard(7, 5, "other orders")];
        let whole = coverage(runs.iter(), &[Some((1, 2)), Some((2, 2))]);
        let texts: Vec<String> = whole.counters.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["7 failure points", "15 of 17 recoveries"]);
        assert_eq!(whole.not_covered, ["other orders"]);
        let part = coverage(runs.iter(), &[Some((1, 4)), Some((3, 4))]);
        assert_eq!(part.not_covered, ["other orders", "shards that were not given: 2/4, 4/4"]);
    }

    #[test]
    fn what_a_shard_left_to_the_others_is_not_repeated() {
        let runs = [shard(1, 1, &format!("{} 2 (this was 1)", OTHER_SHARDS)), shard(1, 1, "visits")];
        assert_eq!(coverage(runs.iter(), &[Some((1, 2)), Some((2, 2))]).not_covered, ["visits"]);
    }
}
