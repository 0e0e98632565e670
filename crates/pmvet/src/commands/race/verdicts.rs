//! Predictions and proofs, put together.

use pmvet_findings::{Coverage, Finding, Place, Role};

use super::confirm::{Confirmed, Spot, Tally};

/// A place in the source, as a reader would look for it.
type Line<'a> = (Option<&'a str>, Option<&'a std::path::Path>, Option<u32>, u64);

fn line(place: &Place) -> Option<Line<'_>> {
    let frame = place.frame()?;
    let offset = if frame.line.is_some() { 0 } else { frame.offset };
    Some((frame.function.as_deref(), frame.file.as_deref(), frame.line, offset))
}

fn end(finding: &Finding, role: Role) -> Option<&Place> {
    finding.places.iter().find(|place| place.role == role)
}

/// What is reported: a proven race once for each line that stores, and of the predictions those that are not proven, with
/// what trying them gave.
pub(super) fn merge(predicted: Vec<Finding>, confirmed: &Confirmed) -> Vec<Finding> {
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
        finding.caveat = Some(caveat(&finding, confirmed));
        left.push(finding);
    }
    proven.extend(left);
    proven
}

fn caveat(finding: &Finding, confirmed: &Confirmed) -> String {
    let spot = |role| end(finding, role).and_then(|place| Spot::of_frame(place.stack.first()?));
    let tally = spot(Role::Store).zip(spot(Role::Load)).and_then(|pair| confirmed.tallies.get(&pair));
    let runs = confirmed.runs;
    match tally {
        None | Some(Tally { meetings: 0, .. }) => format!(
            "Not reproduced: in {runs} runs in which the writer was stopped after its store, the reader did not come before the \
             value was persistent and act on it. Something that leaves no trace in persistent memory may keep the two apart."
        ),
        Some(tally) => match (&confirmed.no_oracle, tally) {
            (Some(why), _) => format!(
                "Observed: the reader acted on the value before it was persistent. Whether that does harm cannot be told: {why}."
            ),
            (None, Tally { left_out: 1.., .. } | Tally { images: 0, .. }) => {
                "Observed: the reader acted on the value before it was persistent. Not all recoveries that would show \
                 whether that does harm were tried."
                    .into()
            }
            (None, tally) => format!(
                "Benign (recovered): the reader was seen {} times to act on the value before it was persistent, and recovery \
                 works on all {} images in which the act survives a crash and the value does not.",
                tally.meetings, tally.images
            ),
        },
    }
}

/// What was tried, for the summary.
pub(super) fn cover(confirmed: &Confirmed, coverage: &mut Coverage) {
    coverage.count("forced runs", u64::from(confirmed.runs), None);
    let met = confirmed.tallies.values().filter(|tally| tally.meetings > 0).count();
    coverage.count("pairs that met", met as u64, None);
    coverage.count("crash images", confirmed.images as u64, None);
    coverage.count("confirmed races", confirmed.findings.len() as u64, None);
    if let Some(why) = &confirmed.no_oracle {
        coverage.not_covered.push(format!("whether races do harm: {why}"));
    }
    coverage.not_covered.extend(confirmed.notes.iter().cloned());
}
