//! What several recordings of one workload predict, as one list of findings.
//!
//! Which races a recording shows depends on how its threads were scheduled. Several recordings measure this: a race that all of
//! them predict is likely to be in the next one, too; any other is marked as chance.

use pmvet_findings::{Evidence, Finding};

use super::race_paths::CodePlace;

/// If this many recordings all show a race, another run counts as likely to show it: a race that occurs half of the time is in all
/// three with a probability of 1/8.
const CONCLUSIVE: usize = 3;

/// A race that one recording predicts.
#[derive(Debug)]
pub struct PredictedFinding {
    /// Two recordings have the same race if this is equal.
    pub(super) place: CodePlace,
    /// Judged by this recording alone, another one may not show it.
    pub(super) by_chance: bool,
    pub(super) finding: Finding,
}

/// One finding for each race that any of the recordings predicts. The recording that is kept comes last: if it has the race,
/// the finding is taken from it.
pub fn join(recordings: Vec<Vec<PredictedFinding>>) -> Vec<Finding> {
    let all = recordings.len();
    let mut races: Vec<JoinedRace> = Vec::new();
    for (index, predicted) in recordings.into_iter().rev().enumerate() {
        for PredictedFinding { place, by_chance, finding } in predicted {
            match races.iter_mut().find(|race| race.place == place) {
                Some(race) => {
                    race.shown += 1;
                    race.by_chance |= by_chance;
                }
                None => races.push(JoinedRace { place, by_chance, shown: 1, is_kept: index == 0, finding }),
            }
        }
    }
    races.into_iter().map(|race| race.finish(all)).collect()
}

struct JoinedRace {
    place: CodePlace,
    by_chance: bool,
    /// In how many recordings it is.
    shown: usize,
    /// The finding is of the recording that is kept.
    is_kept: bool,
    finding: Finding,
}

impl JoinedRace {
    fn finish(mut self, all: usize) -> Finding {
        let is_chance = self.shown < all || self.by_chance && all < CONCLUSIVE;
        if let Evidence::Race { by_chance, .. } = &mut self.finding.evidence {
            *by_chance = is_chance;
        }
        if self.shown < all {
            self.finding.happened += &format!(" {} of {all} recordings show it: another run may not.", self.shown);
        } else if is_chance {
            self.finding.happened += " This run shows it by chance: another run may not.";
        }
        if !self.is_kept {
            let caveat = self.finding.caveat.get_or_insert_default();
            *caveat += " The numbers of its events are those of another recording than the one that is kept.";
        }
        self.finding
    }
}

#[cfg(test)]
mod tests {
    use pmvet_findings::rules;

    use super::*;

    fn predicted(line: u32, by_chance: bool) -> PredictedFinding {
        let evidence = Evidence::Race {
            observed: false,
            by_chance: false,
            store_locks: Vec::new(),
            load_locks: Vec::new(),
            lock_spans: Vec::new(),
            timeline: Vec::new(),
        };
        let finding = Finding {
            rule: rules::PERSISTENCY_RACE.id(),
            severity: rules::PERSISTENCY_RACE.severity,
            title: line.to_string(),
            places: Vec::new(),
            expected: String::new(),
            happened: "It races.".into(),
            fix: String::new(),
            caveat: Some("Predicted.".into()),
            evidence,
            count: 1,
            fingerprint: String::new(),
            replay: None,
        };
        PredictedFinding { place: CodePlace::at_line(line), by_chance, finding }
    }

    /// For each race its line, whether it is marked, and what is said of it.
    fn joined(recordings: Vec<Vec<PredictedFinding>>) -> Vec<(String, bool, String)> {
        let told = |finding: Finding| {
            let Evidence::Race { by_chance, .. } = finding.evidence else { panic!("a race") };
            (finding.title, by_chance, finding.happened + &finding.caveat.unwrap_or_default())
        };
        join(recordings).into_iter().map(told).collect()
    }

    #[test]
    fn a_race_that_some_recordings_lack_is_chance() {
        let found = joined(vec![vec![predicted(1, false), predicted(2, false)], vec![predicted(2, false)]]);
        let [(first, false, _), (second, true, told)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("2", "1"));
        assert!(told.contains("1 of 2 recordings"), "{told}");
        assert!(told.contains("another recording than the one that is kept"), "{told}");
    }

    #[test]
    fn what_three_recordings_show_is_no_chance() {
        let with_it = |recordings| joined((0..recordings).map(|_| vec![predicted(1, true)]).collect());
        assert!(with_it(1)[0].1);
        assert!(with_it(2)[0].1);
        let three = with_it(3);
        assert_eq!((three.len(), three[0].1, three[0].2.as_str()), (1, false, "It races.Predicted."));
    }
}
