//! Arguments of commands about events: `trace`, `events`, and `doctor`, which checks that events arrive.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::common::{Color, SummaryFormat};
use crate::kinds;
use crate::printing::filter::{FilterSpan, parse_address_span, parse_offset_span};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Files that are PM, beside /mnt/pmem*/**, /dev/shm/**, /dev/dax* and those mapped with MAP_SYNC.
    ///
    /// May be given several times. A folder stands for everything below it; a relative glob is relative to the
    /// current folder.
    #[arg(long, value_name = "GLOB", action = ArgAction::Append)]
    pub(crate) pm: Vec<OsString>,

    /// Record loads of PM too
    #[arg(long)]
    pub(crate) loads: bool,

    /// Record what `pmvet race` looks at: loads of PM, atomic operations on volatile memory, allocations
    #[arg(long)]
    pub(crate) races: bool,

    /// Save all events to FILE, for `pmvet events`
    #[arg(long, value_name = "FILE")]
    pub(crate) save_trace: Option<PathBuf>,

    /// Rebuild each PM file from the events and compare it with the file at the end
    #[arg(long)]
    pub(crate) check_image: bool,

    /// Give every run the same addresses, time, random numbers and UUIDs
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Trace the processes that the program starts as well (the default)
    #[arg(long, overrides_with = "no_follow_forks")]
    pub(crate) follow_forks: bool,

    /// Trace the first process only
    #[arg(long, overrides_with = "follow_forks")]
    pub(crate) no_follow_forks: bool,

    /// Configuration [default: ./pmvet.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormat::Human)]
    pub(crate) format: SummaryFormat,

    /// Write the summary to FILE instead of standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,

    /// How many of the hottest sites the summary shows
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,

    /// Run the program once more without pmvet, after the traced run, and print the slowdown.
    ///
    /// The program runs twice then, and its PM files see two runs. The second run reads the same standard input if that
    /// is a file, nothing otherwise, and its output is thrown away.
    #[arg(long)]
    pub(crate) measure_native: bool,

    /// Colours in the summary
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    /// Print nothing but errors of pmvet itself
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Run under DynamoRIO alone, for benchmarks; prints only the time
    #[arg(long, hide = true)]
    pub(crate) bare: bool,

    /// The program and its arguments, passed on untouched
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// A trace saved by `pmvet trace --save-trace`
    pub(crate) file: PathBuf,

    /// Only events of these kinds, such as store,clwb,sfence
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = kinds::parse)]
    pub(crate) kind: Vec<usize>,

    /// Only events of these threads, by pmvet's numbers
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) thread: Vec<u32>,

    /// Only events that touch these addresses: hexadecimal, from A up to but not including B
    #[arg(long, value_name = "A..B", value_parser = parse_address_span)]
    pub(crate) range: Option<FilterSpan>,

    /// Only events on PM files whose path or name matches
    #[arg(long = "file", value_name = "GLOB", value_parser = parse_glob)]
    pub(crate) file_glob: Option<glob::Pattern>,

    /// Only events that touch these bytes of a PM file: decimal, or hexadecimal with 0x
    #[arg(long, value_name = "A..B", value_parser = parse_offset_span)]
    pub(crate) offset: Option<FilterSpan>,

    #[arg(long, value_enum, default_value_t = EventFormat::Text)]
    pub(crate) format: EventFormat,

    /// Stop after N events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Print the call stack of each event
    #[arg(long)]
    pub(crate) stacks: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

pub(super) fn parse_glob(text: &str) -> Result<glob::Pattern, String> {
    glob::Pattern::new(text).map_err(|e| format!("bad glob `{text}`: {} at character {}", e.msg, e.pos))
}
