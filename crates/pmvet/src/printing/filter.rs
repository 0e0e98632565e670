//! Which events are wanted.

use std::path::Path;

use glob::Pattern;
use pmvet_events::event::LINE;
use pmvet_events::paths::text;
use pmvet_events::{Event, What};

use super::{PmPlace, SeenSoFar};
use crate::cli::Events;
use crate::kinds;

/// From `start` up to but not including `end`; no `end` means to the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterSpan {
    start: u64,
    end: Option<u64>,
}

impl FilterSpan {
    fn touches(self, at: u64, len: u64) -> bool {
        // An event without a length still has a place.
        at.saturating_add(len.max(1)) > self.start && self.end.is_none_or(|end| at < end)
    }
}

/// `A..B`, both hexadecimal, with or without `0x`; either may be missing.
pub(crate) fn parse_address_span(text: &str) -> Result<FilterSpan, String> {
    parse_span(text, |n| u64::from_str_radix(n.strip_prefix("0x").unwrap_or(n), 16).ok())
}

/// `A..B`, decimal, or hexadecimal with `0x`; either may be missing.
pub(crate) fn parse_offset_span(text: &str) -> Result<FilterSpan, String> {
    parse_span(text, |n| match n.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => n.parse().ok(),
    })
}

fn parse_span(text: &str, number: impl Fn(&str) -> Option<u64>) -> Result<FilterSpan, String> {
    let (start, end) = text.split_once("..").ok_or("a range is written A..B")?;
    let read = |n: &str| number(n).ok_or_else(|| format!("`{n}` is not a number of the expected form"));
    let start = if start.is_empty() { 0 } else { read(start)? };
    let end = if end.is_empty() { None } else { Some(read(end)?) };
    match end {
        Some(end) if end <= start => Err("the range is empty: its end must be greater than its start".into()),
        _ => Ok(FilterSpan { start, end }),
    }
}

#[derive(Debug)]
pub(crate) struct Filter<'a> {
    kinds: Option<[bool; kinds::COUNT]>,
    threads: &'a [u32],
    addresses: Option<FilterSpan>,
    file: Option<&'a Pattern>,
    offsets: Option<FilterSpan>,
}

impl<'a> Filter<'a> {
    pub(crate) fn new(arguments: &'a Events) -> Self {
        let mut wanted = [false; kinds::COUNT];
        arguments.kind.iter().for_each(|&kind| wanted[kind] = true);
        Self {
            kinds: (!arguments.kind.is_empty()).then_some(wanted),
            threads: &arguments.thread,
            addresses: arguments.range,
            file: arguments.file_glob.as_ref(),
            offsets: arguments.offset,
        }
    }

    pub(crate) fn accepts(&self, event: &Event<'_>, place: Option<PmPlace>, seen: &SeenSoFar) -> bool {
        self.kinds.as_ref().is_none_or(|wanted| wanted[kinds::index(&event.what)])
            && (self.threads.is_empty() || self.threads.contains(&event.thread.0))
            && self.addresses.is_none_or(|span| event.what.range().is_some_and(|(at, len)| span.touches(at, len)))
            && self.file.is_none_or(|pattern| place.is_some_and(|place| matches(pattern, seen.path(place.file))))
            && self.offsets.is_none_or(|span| {
                let bytes = place.and_then(|place| bytes_of_file(&event.what, place.offset?));
                bytes.is_some_and(|(at, len)| span.touches(at, len))
            })
    }
}

/// A glob may match the whole path or only the name.
fn matches(pattern: &Pattern, path: Option<&Path>) -> bool {
    path.is_some_and(|path| {
        pattern.matches(&text(path)) || path.file_name().is_some_and(|name| pattern.matches(&text(name)))
    })
}

fn bytes_of_file(what: &What<'_>, offset: u64) -> Option<(u64, u64)> {
    match what {
        // Mappings start at a page, so lines of memory are lines of the file.
        What::Flush { .. } => Some((offset & !(LINE - 1), LINE)),
        What::FileWrite { data, .. } => Some((offset, data.len() as u64)),
        What::FileRead { len, .. } | What::FileZero { len, .. } | What::FileSync { len, .. } => Some((offset, *len)),
        _ => what.range().map(|(_, len)| (offset, len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmvet_events::event::FlushKind;
    use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

    fn accepts(what: What<'_>, place: Option<PmPlace>, set: impl FnOnce(&mut Filter<'_>)) -> bool {
        let mut filter = Filter { kinds: None, threads: &[], addresses: None, file: None, offsets: None };
        set(&mut filter);
        let event = Event { seq: 1, thread: ThreadId(2), site: SiteId(0), context: ContextId(0), what };
        filter.accepts(&event, place, &SeenSoFar::new(std::time::SystemTime::now()))
    }

    #[test]
    fn spans() {
        assert_eq!(parse_address_span("10..0x20"), Ok(FilterSpan { start: 16, end: Some(32) }));
        assert_eq!(parse_offset_span("10..0x20"), Ok(FilterSpan { start: 10, end: Some(32) }));
        assert_eq!(parse_offset_span("..5"), Ok(FilterSpan { start: 0, end: Some(5) }));
        assert_eq!(parse_offset_span("5.."), Ok(FilterSpan { start: 5, end: None }));
        for wrong in ["", "5", "5..5", "6..5", "x..", "-1..", "1..2..3"] {
            assert!(parse_offset_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_touch_or_not() {
        let load = What::Load { addr: 0x100, size: 8 };
        let with = |text| accepts(load, None, |f| f.addresses = parse_address_span(text).ok());
        assert!(with("107..200") && with("0..101") && with("104.."));
        assert!(!with("108..200") && !with("0..100"));
        assert!(!accepts(What::ThreadExit, None, |f| f.addresses = parse_address_span("0..").ok()));
    }

    #[test]
    fn a_flush_is_of_its_whole_line() {
        let flush = What::Flush { addr: 0x1048, how: FlushKind::Clwb, pm: true };
        let place = Some(PmPlace { file: FileId(1), offset: Some(0x48) });
        let with = |text| accepts(flush, place, |f| f.offsets = parse_offset_span(text).ok());
        assert!(with("0x40..0x41") && with("0x7f..0x80") && !with("0x80..0x90") && !with("0..0x40"));
    }

    #[test]
    fn threads_and_kinds() {
        assert!(accepts(What::ThreadExit, None, |f| f.threads = &[1, 2]));
        assert!(!accepts(What::ThreadExit, None, |f| f.threads = &[1]));
        let mut wanted = [false; kinds::COUNT];
        wanted[kinds::index(&What::ThreadExit)] = true;
        assert!(accepts(What::ThreadExit, None, |f| f.kinds = Some(wanted)));
        assert!(!accepts(What::Load { addr: 0, size: 1 }, None, |f| f.kinds = Some(wanted)));
    }

    #[test]
    fn globs_match_path_or_name() {
        let glob = |text| Pattern::new(text).unwrap();
        assert!(
            matches(&glob("pool*"), Some("/pm/pool1".as_ref())) && matches(&glob("/pm/*"), Some("/pm/pool1".as_ref()))
        );
        assert!(!matches(&glob("pm"), Some("/pm/pool1".as_ref())) && !matches(&glob("*"), None));
    }
}
