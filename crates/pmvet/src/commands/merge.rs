//! `pmvet merge`: the results of the shards of a run as those of one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pmvet_findings::{Coverage, Run};

use super::check::{OTHER_SHARDS, SHARD};
use crate::cli;
use crate::exit::{Error, Exit};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo};

/// What every shard counts as a whole: they all record the same run.
const SHARED: &[&str] = &["failure points"];

pub(crate) fn run(arguments: &cli::Merge) -> Result<Exit, Error> {
    let mut shards = Vec::new();
    for name in &arguments.shards {
        let folder = RunFolder::open(&arguments.runs, Some(name))?;
        shards.push((folder.read_info()?, folder.report()?));
    }
    let Some((first, _)) = shards.first() else { return Err(Error::Usage("name the runs to join".into())) };
    if let Some(other) = shards.iter().position(|(info, _)| plan(info) != plan(first)) {
        let (a, b) = (&arguments.shards[0], &arguments.shards[other]);
        return Err(Error::Usage(format!(
            "`{a}` and `{b}` are no shards of one run: their command lines or options differ"
        )));
    }
    let parts: Vec<Option<(u32, u32)>> = shards.iter().map(|(info, _)| part(info)).collect();
    let info = RunInfo { complete: true, ..first.clone() };
    let folder = RunFolder::create(&arguments.runs)?;
    folder.write_info(&info)?;
    let runs: Vec<Run> = shards.into_iter().map(|(_, run)| run).collect();
    let engines: BTreeSet<String> = runs.iter().flat_map(|run| run.engines.clone()).collect();
    let results = Results {
        folder: &folder,
        info: &info,
        coverage: coverage(&runs, &parts),
        // The longest: shards are made at the same time.
        seconds: runs.iter().map(|run| run.seconds).fold(0.0, f64::max),
        findings: runs.into_iter().flat_map(|run| run.findings).collect(),
        suppress: Vec::new(),
        witnesses: HashMap::new(),
        tree: None,
        engines: engines.into_iter().collect(),
        phases: Vec::new(),
    };
    reporting::report(results, &arguments.reporting)
}

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

fn coverage(runs: &[Run], parts: &[Option<(u32, u32)>]) -> Coverage {
    let mut all = Coverage::default();
    for counter in runs.iter().flat_map(|run| &run.coverage.counters) {
        match all.counters.iter_mut().find(|known| known.name == counter.name) {
            Some(known) if SHARED.contains(&known.name.as_str()) => known.done = known.done.max(counter.done),
            Some(known) => {
                known.done += counter.done;
                known.of = known.of.zip(counter.of).map(|(a, b)| a + b);
            }
            None => all.counters.push(counter.clone()),
        }
    }
    for text in runs.iter().flat_map(|run| &run.coverage.not_covered) {
        if !text.starts_with(OTHER_SHARDS) && !all.not_covered.contains(text) {
            all.not_covered.push(text.clone());
        }
    }
    let of = parts.iter().flatten().map(|&(_, n)| n).max().unwrap_or(0);
    let is_there = |k: &u32| parts.contains(&Some((*k, of)));
    let missing: Vec<String> = (1..=of).filter(|k| !is_there(k)).map(|k| format!("{k}/{of}")).collect();
    if !missing.is_empty() && !parts.contains(&None) {
        all.not_covered.push(format!("shards that were not given: {}", missing.join(", ")));
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
        let whole = coverage(&runs, &[Some((1, 2)), Some((2, 2))]);
        let texts: Vec<String> = whole.counters.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["7 failure points", "15 of 17 recoveries"]);
        assert_eq!(whole.not_covered, ["other orders"]);
        let part = coverage(&runs, &[Some((1, 4)), Some((3, 4))]);
        assert_eq!(part.not_covered, ["other orders", "shards that were not given: 2/4, 4/4"]);
    }

    #[test]
    fn what_a_shard_left_to_the_others_is_not_repeated() {
        let runs = [shard(1, 1, &format!("{} 2 (this was 1)", OTHER_SHARDS)), shard(1, 1, "visits")];
        assert_eq!(coverage(&runs, &[Some((1, 2)), Some((2, 2))]).not_covered, ["visits"]);
    }
}
