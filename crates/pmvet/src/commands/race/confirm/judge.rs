//! Lets recoveries judge what happened in a run.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use pmvet_engines::confirm::meetings::Scanner;
use pmvet_engines::confirm::verdict::Went;
use pmvet_engines::confirm::{self, Crash, Meeting, Meetings, Verdict};
use pmvet_engines::inject::findings::{Names, Setting};
use pmvet_engines::inject::trial::{Bench, room};
use pmvet_engines::inject::{Campaign, Job, Journal, Recovery, refine};
use pmvet_engines::lockset::pm_locks::HeldLock;
use pmvet_engines::native::NativeStacks;
use pmvet_engines::stacks::Symbols;
use pmvet_events::SiteId;
use pmvet_events::file::Definitions;
use pmvet_findings::{Finding, Outcome};
use pmvet_model::Mode;
use pmvet_target::crash::Versions;
use pmvet_target::launch::{self, pm_variables};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox;
use pmvet_target::symbols::Symbolizer;

use super::{Confirm, Confirmed, Spot, Tally};
use crate::exit::Error;
use crate::recovery::{PATIENCE, files, usual_timeout, with_paths};
use crate::reporting::Witness;
use crate::run_folder::RunFolder;
/// Pairs have so many meetings in one run, at most; and so many are judged in all.
const STAGES: usize = 3;
const MOST_JUDGED: usize = 4;

/// A recorded run, read.
pub(super) struct Run {
    meetings: Meetings,
    recording: Recording,
    symbols: Symbols,
    places: Definitions,
}

impl Run {
    pub(super) fn read(recording: &Recording, folder: &RunFolder) -> Result<Self, Error> {
        let failed = |source| Error::Trace { path: recording.trace(), source };
        let store = MappedFile::new(folder.temporary().map_err(|e| output("a temporary file", e))?);
        let mut reader = recording.read().map_err(failed)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = Scanner::new(recording, Mode::Adr, store);
        while let Some(event) = reader.next().map_err(failed)? {
            symbols.event(&event);
            scanner.event(&event)?;
        }
        Ok(Self { meetings: scanner.finish()?, recording: recording.clone(), symbols, places: reader.into_places() })
    }
}

/// Lets recoveries judge.
pub(super) struct Judge<'a> {
    folder: &'a RunFolder,
    pub(super) recovery: Recovery,
    pub(super) usual: Outcome,
    journal: Journal,
    workers: usize,
    pub(super) deadline: Option<Instant>,
    named_timeout: Option<Duration>,
    natives: NativeStacks,
}

impl<'a> Judge<'a> {
    pub(super) fn new(confirm: &Confirm<'a>) -> Result<Self, Error> {
        let (workload, arguments) = (confirm.workload, confirm.arguments);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            folder: confirm.folder,
            recovery: Recovery {
                command: workload.recovery_command(arguments.recover.as_deref()),
                input: workload.input.clone(),
                variables: pm_variables().collect(),
                timeout: arguments.recover_timeout.unwrap_or(PATIENCE),
                oracle: arguments.oracle.as_deref().map(sandbox::shell),
                files: workload.files.clone(),
                most_bytes: 0,
                driver: workload.driver.clone(),
            },
            usual: Outcome::Exit { status: 0 },
            journal: Journal::open(&confirm.folder.file("tried.jsonl")).map_err(|e| output("tried.jsonl", e))?,
            // Two servers cannot have one port.
            workers: if workload.driver.is_some() { 1 } else { arguments.jobs.map_or(cores, usize::from) },
            deadline: arguments.budget.map(|budget| Instant::now() + budget),
            named_timeout: arguments.recover_timeout,
            natives: NativeStacks::default(),
        })
    }

    /// Whether recovery works on what the undisturbed run left. If it does not, it cannot judge: says why.
    pub(super) fn prove(&mut self, run: &Run) -> Result<Result<(), String>, Error> {
        let Meetings { versions, last, .. } = &run.meetings;
        let paths = files(versions, *last);
        self.recovery.oracle = self.recovery.oracle.take().map(|oracle| with_paths(&oracle, &paths));
        let bytes = versions.get(*last).iter().flat_map(|v| &v.files).map(|f| f.size).sum();
        self.recovery.most_bytes = room(bytes);
        let trial = self.recovery.run(&mut Bench::default(), versions, *last, &[], None);
        let Some(trial) = trial.map_err(|e| output("the recovery", e))? else { return Ok(Err("interrupted".into())) };
        self.recovery.timeout = self.named_timeout.unwrap_or(usual_timeout(trial.time));
        if trial.outcome == self.usual {
            return Ok(Ok(()));
        }
        Ok(Err(format!("recovery {} though nothing was lost", trial.outcome)))
    }

    pub(super) fn judge(&mut self, mut run: Run, name: Option<&str>, confirmed: &mut Confirmed) -> Result<(), Error> {
        let meetings = std::mem::take(&mut run.meetings.meetings);
        let mut spots: HashMap<SiteId, Option<Spot>> = HashMap::new();
        let mut stacks = run.symbols.with(&run.places);
        for meeting in &meetings {
            for site in [meeting.store.site, meeting.load.site] {
                spots.entry(site).or_insert_with(|| Spot::of(site, &mut stacks));
            }
        }
        let spot = |site: SiteId| spots.get(&site).cloned().flatten();
        // One meeting of each pair after the other: most pairs need no more than one.
        let mut stages: Vec<Vec<Meeting>> = vec![Vec::new(); STAGES];
        let mut seen: HashMap<_, usize> = HashMap::new();
        for meeting in meetings {
            let nth = seen.entry((meeting.store.site, meeting.load.site)).or_insert(0);
            stages[(*nth).min(STAGES - 1)].push(meeting);
            *nth += 1;
        }
        for mut stage in stages {
            stage.retain(|m| {
                let Some((store, load)) = spot(m.store.site).zip(spot(m.load.site)) else { return false };
                let enough = |tally: &Tally| tally.meetings >= MOST_JUDGED;
                let known = confirmed.tallies.get(&(store.clone(), load)).is_some_and(enough);
                !confirmed.findings.contains_key(&store) && (m.brief || !known)
            });
            if stage.is_empty() || launch::stopped_by().is_some() {
                continue;
            }
            for meeting in &stage {
                if let Some(pair) = spot(meeting.store.site).zip(spot(meeting.load.site)) {
                    confirmed.tallies.entry(pair).or_default().meetings += 1;
                }
            }
            if confirmed.no_oracle.is_some() {
                continue;
            }
            let versions = &run.meetings.versions;
            confirmed.images += self.try_all(&stage, &run)?;
            let neither = self.neither(&stage, &run)?;
            let went = |crash: &Crash, patches: bool| {
                let patches = if patches { crash.patches.as_slice() } else { &[] };
                self.went(versions, &Job { version: crash.version, patches })
            };
            for (pair, verdict) in confirm::judge(&stage, |c| went(c, true), |c| went(c, false), &neither) {
                let Some((store, load)) = spot(pair.0).zip(spot(pair.1)) else { continue };
                let tally = confirmed.tallies.entry((store.clone(), load)).or_default();
                match verdict {
                    Verdict::Recovered { images } => tally.images += images,
                    Verdict::WriterAlone { .. } => tally.writer_alone = true,
                    Verdict::Unfinished => tally.unfinished = true,
                    Verdict::Confirmed { meeting, crash } => {
                        let meeting = &stage[meeting];
                        let crash = &meeting.crashes[crash];
                        let job = Job { version: crash.version, patches: &crash.patches };
                        let Some(tried) = self.journal.get(&job.image(versions)) else { continue };
                        let setting = self.setting();
                        let mut stacks = run.symbols.with(&run.places);
                        let mut names = Names { stacks: &mut stacks, natives: &mut self.natives };
                        let finding =
                            confirm::findings::confirmed(meeting, crash, tried, name.is_some(), &setting, &mut names);
                        let witness = Witness {
                            recording: name.map(str::to_owned),
                            seq: Some(crash.seq),
                            patches: crash.patches.clone(),
                        };
                        confirmed.witnesses.insert(tried.image.clone(), witness);
                        confirmed.findings.entry(store).or_insert(finding);
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the recoveries that a verdict needs: from the crashes, and where they fail from the same with nothing lost.
    fn try_all(&mut self, meetings: &[Meeting], run: &Run) -> Result<usize, Error> {
        let versions = &run.meetings.versions;
        let crashes = || meetings.iter().flat_map(|m| &m.crashes);
        let jobs: Vec<Job<'_>> = crashes().map(|c| Job { version: c.version, patches: &c.patches }).collect();
        let tried = self.recover(versions, &jobs)?;
        let bad = crashes().filter(|crash| self.is_bad(versions, crash));
        let whole: Vec<Job<'_>> = bad.map(|c| Job { version: c.version, patches: &[] }).collect();
        Ok(tried + self.recover(versions, &whole)?)
    }

    fn recover(&mut self, versions: &Versions, jobs: &[Job<'_>]) -> Result<usize, Error> {
        let campaign = Campaign {
            recovery: &self.recovery,
            versions,
            usual: &self.usual,
            workers: self.workers,
            deadline: self.deadline,
        };
        Ok(campaign.run(jobs, &mut self.journal, &()).map_err(|e| output("a recovery", e))?.tried)
    }

    fn is_bad(&self, versions: &Versions, crash: &Crash) -> bool {
        self.went(versions, &Job { version: crash.version, patches: &crash.patches }) == Went::Badly
    }

    fn went(&self, versions: &Versions, job: &Job<'_>) -> Went {
        match self.journal.get(&job.image(versions)) {
            Some(tried) if tried.outcome == self.usual => Went::Well,
            Some(_) => Went::Badly,
            None => Went::NotTried,
        }
    }

    /// For meetings with a crash that recovery does not survive: recoveries from before the store.
    fn neither(&mut self, meetings: &[Meeting], run: &Run) -> Result<impl Fn(&Meeting) -> Went + use<>, Error> {
        let bad = |m: &&Meeting| m.crashes.iter().any(|crash| self.is_bad(&run.meetings.versions, crash));
        let moments: Vec<u64> = meetings.iter().filter(bad).map(|m| m.store.seq).collect();
        let mut known: HashMap<u64, Went> = HashMap::new();
        if !moments.is_empty() {
            let store = MappedFile::new(self.folder.temporary().map_err(|e| output("a temporary file", e))?);
            let (versions, found) = refine::versions_at(&run.recording, &[moments], store)?;
            let jobs: Vec<Job<'_>> = found.iter().map(|&(_, version)| Job { version, patches: &[] }).collect();
            self.recover(&versions, &jobs)?;
            known = found.iter().zip(&jobs).map(|(&(moment, _), job)| (moment, self.went(&versions, job))).collect();
        }
        Ok(move |meeting: &Meeting| known.get(&meeting.store.seq).copied().unwrap_or(Went::NotTried))
    }

    fn setting(&self) -> Setting {
        Setting {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: self.usual.clone(),
        }
    }

    /// Whether recovery, or what comes after it, fails because a crash left a lock in PM held. Makes an error of the
    /// finding then.
    pub(super) fn lock(
        &mut self,
        lock: &HeldLock,
        finding: &mut Finding,
        witnesses: &mut HashMap<String, Witness>,
    ) -> Result<(), Error> {
        let store = MappedFile::new(self.folder.temporary().map_err(|e| output("a temporary file", e))?);
        let moments = [vec![lock.crash_at]];
        let (versions, found) = refine::versions_at(&self.folder.recording(), &moments, store)?;
        let Some(&(_, version)) = found.first() else { return Ok(()) };
        let job = Job { version, patches: &[] };
        self.recover(&versions, &[job])?;
        let setting = self.setting();
        let Some(tried) = self.journal.get(&job.image(&versions)).filter(|t| t.outcome != self.usual) else {
            return Ok(());
        };
        confirm::findings::lock_left_held(finding, lock.crash_at, tried, &setting, &mut self.natives);
        let witness = Witness { recording: None, seq: Some(lock.crash_at), patches: Vec::new() };
        witnesses.insert(tried.image.clone(), witness);
        Ok(())
    }
}

pub(super) fn output(what: &str, source: io::Error) -> Error {
    Error::Output { action: "use", what: what.into(), source }
}
