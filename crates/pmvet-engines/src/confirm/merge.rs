//! Predictions and proofs, put together.

use pmvet_findings::{Coverage, Finding, Place, Role};

use super::instruction::Instruction;
use super::policy::POLICY;
use super::search::{Confirmed, PairTally};

/// A place in the source, as a reader would look for it.
type VerdictLine<'a> = (Option<&'a str>, Option<&'a std::path::Path>, Option<u32>, u64);

fn line(place: &Place) -> Option<VerdictLine<'_>> {
    let frame = place.frame()?;
    let offset = if frame.line.is_some() { 0 } else { frame.offset };
    Some((frame.function.as_deref(), frame.file.as_deref(), frame.line, offset))
}

fn end(finding: &Finding, role: Role) -> Option<&Place> {
    finding.places.iter().find(|place| place.role == role)
}

/// What is reported: proven races, once for each line that stores, and the unproven predictions, with what trying them
/// gave.
pub fn merge(predicted: Vec<Finding>, confirmed: &Confirmed) -> Vec<Finding> {
    let mut proven: Vec<Finding> = Vec::new();
    for finding in confirmed.findings.values() {
        let same =
            |known: &&mut Finding| end(known, Role::Store).and_then(line) == end(finding, Role::Store).and_then(line);
        match proven.iter_mut().find(same) {
            Some(known) => known.count += finding.count,
            None => proven.push(finding.clone()),
        }
    }
    let mut left = Vec::new();
    for mut finding in predicted {
        let store = end(&finding, Role::Store).and_then(line);
        if let Some(known) = proven.iter_mut().find(|known| end(known, Role::Store).and_then(line) == store) {
            known.count += finding.count;
            continue;
        }
        let (tally, told_of) = strongest(&finding, confirmed);
        finding.caveat = Some(match is_left_to_culprit(&finding, confirmed) {
            true => LEFT_TO_CULPRIT.into(),
            false => caveat(tally, confirmed) + &told_of,
        });
        finding.places.extend(tally.and_then(|tally| Some(tally.effect.as_ref()?.0.clone())));
        left.push(finding);
    }
    proven.extend(left);
    proven
}

/// Caveat for a store whose loss is reported as an error of another store.
const LEFT_TO_CULPRIT: &str = "Not proven by itself: recovery fails if the value is lost, but it fails, too, if only another store is lost \
    that a crash loses with it. That is reported as an error.";

fn is_left_to_culprit(finding: &Finding, confirmed: &Confirmed) -> bool {
    let store = end(finding, Role::Store).and_then(|place| Instruction::of_frame(place.stack.first()?));
    store.is_some_and(|store| confirmed.left_to_culprits.contains(&store))
}

/// The most informative pair of a finding that met, and its load, if there are several.
fn strongest<'a>(finding: &Finding, confirmed: &'a Confirmed) -> (Option<&'a PairTally>, String) {
    let spot = |place: &Place| Instruction::of_frame(place.stack.first()?);
    let Some(store) = end(finding, Role::Store).and_then(spot) else { return (None, String::new()) };
    let loads: Vec<&Place> = finding.places.iter().filter(|place| place.role == Role::Load).collect();
    let met = |load: &&Place| confirmed.tallies.get(&(store.clone(), spot(load)?)).filter(|tally| tally.meetings > 0);
    let pairs: Vec<(&Place, &PairTally)> = loads.iter().filter_map(|load| Some((*load, met(load)?))).collect();
    let tells = |tally: &PairTally| {
        let left = tally.inconsistent.map_or(0, |(_, left)| left);
        (tally.output, left, tally.effect.is_some(), tally.meetings)
    };
    let Some(&(load, tally)) = pairs.iter().max_by_key(|(_, tally)| tells(tally)) else { return (None, String::new()) };
    let told_of = match load.frame().filter(|_| loads.len() > 1) {
        Some(frame) => {
            format!(" That is about the load in {frame}; {} of {} readers came in time.", pairs.len(), loads.len())
        }
        None => String::new(),
    };
    (Some(tally), told_of)
}

fn caveat(tally: Option<&PairTally>, confirmed: &Confirmed) -> String {
    let Some(tally) = tally else {
        if confirmed.runs == 0 {
            return "Not tried: no run was forced in which the reader could have come before the value was persistent."
                .into();
        }
        return format!(
            "Not reproduced: in {} runs in which the writer was stopped after its store, the reader did not come before the \
             value was persistent and act on it. Something that leaves no trace in persistent memory may keep the two apart.",
            confirmed.runs
        );
    };
    let acted = match (&tally.effect, tally.followed) {
        (Some((_, effect)), _) => format!("the reader acted on the value before it was persistent. {effect}"),
        (None, 0) => "the reader went on with the value before it was persistent.".into(),
        (None, followed) => format!(
            "the reader read the value before it was persistent. In {followed} times that it was followed, nothing that it \
             stored depended on the value by data{}.",
            if tally.branched { ", though a branch did" } else { "" }
        ),
    };
    if let Some(why) = &confirmed.no_oracle {
        return format!("Observed: {acted} Whether that does harm cannot be told: {why}.");
    }
    if tally.left_out >= tally.images && tally.images < POLICY.images_of_pair {
        return format!("Observed: {acted} Not all recoveries that would show whether that does harm were tried.");
    }
    let bytes = match tally.inconsistent {
        None => String::new(),
        Some((all, 0)) => format!(" Recovery overwrites all {all} bytes that depend on it."),
        Some((all, left)) if confirmed.has_oracle => {
            format!(
                " Of {all} bytes that depend on it, recovery leaves {left} as they are, and {} accepts them.",
                if confirmed.operations.is_some() { "the comparison of contents" } else { "the oracle" }
            )
        }
        Some((all, left)) => {
            return format!(
                "Observed: {acted} Recovery works on all images that were tried, but of {all} bytes that depend on the lost \
                 value it leaves {left} as they are, and no --oracle says whether they are right."
            );
        }
    };
    let left_out = match tally.left_out {
        0 => String::new(),
        left_out => format!(" {left_out} more were not tried."),
    };
    let (meetings, images) = (tally.meetings, tally.images);
    if tally.output {
        return format!(
            "Observed: {acted} Recovery works on all {images} images that were tried, but output that depends on the lost value \
             cannot be taken back: whoever has read it may rely on what a crash loses.{left_out}"
        );
    }
    let checked = match confirmed.has_oracle {
        true => "",
        false => " Only how the recovery ends was checked; an --oracle would say whether what it leaves is right.",
    };
    format!(
        "Benign (recovered): {acted} That happened {meetings} times, and recovery works on all {images} images in which what the \
         reader did survives a crash and the value does not.{left_out}{bytes}{checked}"
    )
}

/// What was tried, for the summary.
pub fn cover(confirmed: &Confirmed, coverage: &mut Coverage) {
    coverage.count("forced runs", u64::from(confirmed.runs), None);
    let met = confirmed.tallies.values().filter(|tally| tally.meetings > 0).count();
    coverage.count("pairs that met", met as u64, None);
    coverage.count("crash images", confirmed.images as u64, None);
    coverage.count("stores of confirmed races", confirmed.findings.len() as u64, None);
    if let Some(why) = &confirmed.no_oracle {
        coverage.not_covered.push(format!("whether races do harm: {why}"));
    }
    coverage.not_covered.extend(confirmed.notes.iter().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_what_was_tried() {
        let mut some_runs = Confirmed::default();
        some_runs.runs = 3;
        let tally = PairTally { meetings: 2, images: 5, followed: 2, ..PairTally::default() };
        assert!(caveat(None, &Confirmed::default()).starts_with("Not tried:"));
        assert!(caveat(None, &some_runs).starts_with("Not reproduced: in 3 runs"));
        let benign = caveat(Some(&tally), &some_runs);
        assert!(benign.starts_with("Benign (recovered)") && benign.contains("--oracle"), "{benign}");
        some_runs.has_oracle = true;
        assert!(!caveat(Some(&tally), &some_runs).contains("--oracle"));
        // What was printed stays printed, whatever recovery does.
        let printed = PairTally { output: true, ..tally };
        assert!(caveat(Some(&printed), &some_runs).starts_with("Observed:"));
    }
}
