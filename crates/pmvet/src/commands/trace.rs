//! `pmvet trace`: runs a target, follows its events, and says what it did.

mod save;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use pmvet_events::plan::Plan;
use pmvet_events::wire::Brief;
use pmvet_events::{Event, Places, ThreadId, What};
use pmvet_target::collect::{CollectError, SinkError};
use pmvet_target::image::Images;
use pmvet_target::install::Install;
use pmvet_target::launch::{LaunchError, TargetExit, signal_name};
use pmvet_target::program::Program;
use pmvet_target::{Ending, Launch, Sink, launch};

use self::save::Saver;
use super::native::{self, Input};
use crate::cli::{Color, SummaryFormat, Trace};
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::files;
use crate::summary::count::EventCounter;
use crate::summary::render::{self, Style};
use crate::summary::{ImageSummary, Native, RunFacts, Summary};
use crate::{pm, system};

/// Everything that decides how a target is traced, in plain terms.
#[derive(Debug, PartialEq, Eq)]
struct TraceSettings {
    command: Vec<OsString>,
    plan: Plan,
    follow_forks: bool,
    bare: bool,
    check_image: bool,
    measure_native: bool,
    save_trace: Option<PathBuf>,
    output: TraceOutput,
}

#[derive(Debug, PartialEq, Eq)]
struct TraceOutput {
    format: SummaryFormat,
    file: Option<PathBuf>,
    top: usize,
    color: Color,
    quiet: bool,
}

impl TraceSettings {
    fn new(arguments: Trace, config: Config, folder: &Path) -> Result<Self, Error> {
        if arguments.measure_native && arguments.quiet && arguments.summary.is_none() {
            return Err(Error::Usage(
                "--measure-native: the slowdown is part of the summary, which --quiet leaves out; name a file with --summary"
                    .into(),
            ));
        }
        let mut globs: Vec<String> = pm::DEFAULT.map(String::from).into();
        globs.extend(config.pm);
        for text in &arguments.pm {
            globs.push(pm::glob(text, folder).map_err(|e| Error::Usage(format!("--pm: {e}")))?);
        }
        Ok(Self {
            command: arguments.command,
            plan: Plan {
                operations: None,
                loads: arguments.loads || arguments.races,
                races: arguments.races,
                deterministic: arguments.deterministic,
                // Without `--check-image` the target need not wait for snapshots.
                snapshots: arguments.check_image,
                pm: globs,
                sync: config.sync,
                alloc: config.alloc,
                forks: None,
                stalls: Vec::new(),
                threads: 0,
                patience: 0,
                in_step: false,
                delays: false,
                follow: 0,
                branches: None,
            },
            follow_forks: !arguments.no_follow_forks,
            bare: arguments.bare,
            check_image: arguments.check_image,
            measure_native: arguments.measure_native,
            save_trace: arguments.save_trace,
            output: TraceOutput {
                format: arguments.format,
                file: arguments.summary,
                top: arguments.top,
                color: arguments.color,
                quiet: arguments.quiet,
            },
        })
    }
}

pub(crate) fn run(arguments: Trace) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(|source| Error::Output {
        action: "find",
        what: "the current folder".into(),
        source,
    })?;
    let config = Config::load(arguments.config.as_deref())?;
    let settings = TraceSettings::new(arguments, config, &folder)?;
    let program = Program::find(&settings.command)?;
    let install = Install::find()?;
    system::handle_signals();
    trace(&settings, program, &install)
}

fn trace(settings: &TraceSettings, program: Program, install: &Install) -> Result<Exit, Error> {
    let mut sink = Recorder::new(settings)?;
    let input = Input::of_this_process();
    let how = Launch {
        program,
        plan: settings.plan.clone(),
        follow_forks: settings.follow_forks,
        bare: settings.bare,
        sandbox: None,
    };
    let cpu = system::children_cpu_time();
    let result = launch(&how, install, &mut sink);
    let cpu = system::children_cpu_time().saturating_sub(cpu);
    let ending = match result {
        Ok(ending) => ending,
        Err(error) => return sink.abandon(error),
    };
    let Recorder { counter, writer, images, .. } = sink;
    let trace = writer.map(|writer| writer.finish(&ending)).transpose()?;
    if settings.bare {
        let (wall, cpu) = (ending.time.as_secs_f64(), cpu.as_secs_f64());
        settings.output.write(|_| match settings.output.format {
            SummaryFormat::Human => format!("wall {wall:.6} s, CPU {cpu:.6} s\n"),
            SummaryFormat::Json => format!("{{\"wall_seconds\":{wall},\"cpu_seconds\":{cpu}}}\n"),
        })?;
        return Ok(target_exit(&ending));
    }
    let mut notes = Vec::new();
    let verdicts = images.map(|mut images| images.check().into_iter().map(|(_, verdict)| verdict).collect());
    let native = if settings.measure_native && launch::stopped_by().is_none() {
        measure(&how.program, &input, &ending, &mut notes)
    } else {
        None
    };
    let saw_pm = counter.saw_pm();
    let interrupted = launch::stopped_by();
    let run = RunFacts {
        command: &settings.command,
        ending: &ending,
        interrupted,
        cpu,
        native,
        verdicts,
        trace,
        notes,
        top: settings.output.top,
    };
    let mut summary = Summary::new(counter, run);
    let (exit, messages) = judge(&summary, &ending, saw_pm, settings);
    summary.exit_code = exit.code();
    let json = match settings.output.format {
        SummaryFormat::Human => None,
        SummaryFormat::Json => Some(serde_json::to_string(&summary).map_err(|e| Error::Output {
            action: "encode",
            what: "the summary".into(),
            source: e.into(),
        })?),
    };
    settings.output.write(|style| json.map_or_else(|| render::render(&summary, style), |json| json + "\n"))?;
    for (weight, message) in messages {
        // A failing target is no error of pmvet.
        if !settings.output.quiet || matches!(weight, Exit::Findings | Exit::Internal) {
            eprintln!("pmvet: {message}");
        }
    }
    Ok(exit)
}

fn target_exit(ending: &Ending) -> Exit {
    match (launch::stopped_by(), ending.exit) {
        (Some(_), _) => Exit::Interrupted,
        (None, TargetExit::Status(0)) => Exit::Ok,
        (None, _) => Exit::TargetFailed,
    }
}

/// The exit code of the run, and what there is to say about it.
fn judge(summary: &Summary, ending: &Ending, saw_pm: bool, settings: &TraceSettings) -> (Exit, Vec<(Exit, String)>) {
    let mut all = Vec::new();
    match target_exit(ending) {
        Exit::Ok => {}
        Exit::Interrupted => {
            let signal = launch::stopped_by().map_or("a signal", signal_name);
            all.push((Exit::Interrupted, format!("interrupted by {signal}; the target ended with {}", ending.exit)));
        }
        exit => all.push((exit, format!("the target failed: {}", ending.exit))),
    }
    // A killed thread loses what it was about to report; after a kill that needs no message.
    let killed = matches!(ending.exit, TargetExit::Signal(_)) || ending.interrupted.is_some();
    if ending.loss.events > 0 && !killed {
        let message = format!(
            "{} events were lost, so the trace is incomplete: a thread or process of the target was killed, or this is a bug in pmvet",
            ending.loss.events
        );
        all.push((Exit::Internal, message));
    }
    for (file, image) in summary.images().filter(|(_, image)| image.is_mismatch()) {
        all.push((Exit::Findings, format!("{}: {}", file.path, render::image_text(image))));
    }
    if !saw_pm {
        let message = format!(
            "nothing was analysed: the target mapped no PM file. PM is any file that matches {}, or that is mapped with \
             MAP_SYNC; name other files with --pm GLOB",
            pm::shown(&settings.plan.pm)
        );
        all.push((Exit::NothingAnalysed, message));
    } else if settings.check_image
        && !summary.images().any(|(_, image)| !matches!(image, ImageSummary::NotChecked { .. }))
    {
        all.push((Exit::NothingAnalysed, "no image could be compared with its file".into()));
    }
    let exit = all.iter().map(|(exit, _)| *exit).max().unwrap_or(Exit::Ok);
    (exit, all)
}

fn measure(program: &Program, input: &Input, ending: &Ending, notes: &mut Vec<String>) -> Option<Native> {
    match native::run(program, input) {
        Ok(run) => Some(Native {
            wall_seconds: run.wall.as_secs_f64(),
            cpu_seconds: run.cpu.as_secs_f64(),
            slowdown: ending.time.as_secs_f64() / run.wall.as_secs_f64().max(1e-6),
            ended: run.ended,
            without_input: input.is_lost(),
        }),
        Err(e) => {
            notes.push(format!("the run without pmvet could not be made: {e}"));
            None
        }
    }
}

impl TraceOutput {
    /// Writes the summary to its destination, if any.
    fn write(&self, text: impl FnOnce(Style) -> String) -> Result<(), Error> {
        let terminal = self.file.is_none() && std::io::stderr().is_terminal();
        let color = match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        match &self.file {
            Some(path) => {
                files::replace(path, |out| out.write_all(text(Style { color }).as_bytes())).map_err(|source| {
                    Error::Output { action: "write", what: format!("the summary to {}", path.display()), source }
                })
            }
            None if self.quiet => Ok(()),
            None => {
                // If standard error is closed, there is nowhere to report that.
                let _ = std::io::stderr().write_all(text(Style { color }).as_bytes());
                Ok(())
            }
        }
    }
}

/// Passes each event on to all that need it.
struct Recorder {
    counter: EventCounter,
    writer: Option<Saver>,
    images: Option<Images>,
}

impl Recorder {
    fn new(settings: &TraceSettings) -> Result<Self, Error> {
        let writer = match &settings.save_trace {
            Some(path) if !settings.bare => Some(Saver::create(path, settings.command.clone(), settings.plan.loads)?),
            _ => None,
        };
        Ok(Self { counter: EventCounter::default(), writer, images: settings.check_image.then(Images::default) })
    }

    /// Removes the incomplete trace of a failed run.
    fn abandon(self, error: LaunchError) -> Result<Exit, Error> {
        let failure = match self.writer {
            Some(mut writer) => {
                let failure = writer.take_failure();
                writer.remove();
                failure
            }
            None => None,
        };
        if let Some(signal) = launch::stopped_by() {
            eprintln!("pmvet: interrupted by {}", signal_name(signal));
            return Ok(Exit::Interrupted);
        }
        Err(match (failure, error) {
            (Some(failure), LaunchError::Sink(_) | LaunchError::Collect(CollectError::Sink(_))) => Error::Save(failure),
            (_, error) => Error::Launch(error),
        })
    }
}

impl Sink for Recorder {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        self.counter.event(event, places);
        if let Some(writer) = &mut self.writer {
            writer.event(event, places)?;
        }
        match &mut self.images {
            // Loads do not change images.
            Some(images) if !matches!(event.what, What::Load { .. }) => images.event(event, places),
            _ => Ok(()),
        }
    }

    fn counts(&self) -> bool {
        self.writer.is_none() && self.images.is_none()
    }

    fn count(&mut self, thread: ThreadId, record: &Brief, places: &dyn Places) {
        self.counter.record(thread, record, places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use pmvet_target::collect::LostEvents;

    fn settings(words: &[&str]) -> Result<TraceSettings, Error> {
        let words = ["pmvet", "trace"].into_iter().chain(words.iter().copied());
        let Command::Trace(arguments) = Cli::try_parse_from(words).unwrap().command else { panic!("not trace") };
        let config = Config { pm: vec!["/from/config".into()], ..Config::default() };
        TraceSettings::new(*arguments, config, Path::new("/no/such"))
    }

    #[test]
    fn arguments_become_settings() {
        let s = settings(&["--pm", "x*", "--loads", "--no-follow-forks", "--", "p", "-q"]).unwrap();
        assert_eq!(s.plan.pm, ["/mnt/pmem*/**", "/dev/shm/**", "/dev/dax*", "/from/config", "/no/such/x*"]);
        assert!(s.plan.loads && !s.follow_forks && !s.plan.snapshots && !s.output.quiet);
        assert_eq!(s.command, ["p", "-q"]);
        assert!(settings(&["--check-image", "--", "p"]).unwrap().plan.snapshots);
        assert_eq!(settings(&["--pm", "[", "--", "p"]).unwrap_err().exit(), Exit::Usage);
    }

    /// The exit code of a run with this result.
    fn code(exit: TargetExit, lost: u64, saw_pm: bool, image: Option<ImageSummary>) -> u8 {
        let settings = settings(&["--check-image", "--", "p"]).unwrap();
        let loss = LostEvents { events: lost, interrupted: 0 };
        let time = std::time::Duration::ZERO;
        let ending = Ending::new(exit, time, loss);
        let run = RunFacts {
            command: &settings.command,
            ending: &ending,
            interrupted: None,
            cpu: time,
            native: None,
            verdicts: None,
            trace: None,
            notes: Vec::new(),
            top: 1,
        };
        let mut counter = EventCounter::default();
        let file = crate::summary::count::FileCount { path: Some("f".into()), mapped: 1, ..Default::default() };
        counter.files = vec![Default::default(), file];
        let mut summary = Summary::new(counter, run);
        summary.files[0].image = image;
        judge(&summary, &ending, saw_pm, &settings).0.code()
    }

    #[test]
    fn the_exit_code_is_the_gravest() {
        let same = || Some(ImageSummary::Same { bytes: 1 });
        let size = || Some(ImageSummary::Size { image: 1, file: 2 });
        let (ok, failed, killed) = (TargetExit::Status(0), TargetExit::Status(1), TargetExit::Signal(9));
        assert_eq!(code(ok, 0, true, same()), 0);
        assert_eq!(code(ok, 0, false, same()), 4);
        assert_eq!(code(ok, 0, true, Some(ImageSummary::NotChecked { why: "gone".into() })), 4);
        assert_eq!(code(failed, 0, false, same()), 3);
        assert_eq!(code(failed, 0, true, size()), 1);
        assert_eq!(code(ok, 1, true, size()), 70);
        assert_eq!(code(killed, 1, true, same()), 3, "whoever is killed cannot report");
    }
}
