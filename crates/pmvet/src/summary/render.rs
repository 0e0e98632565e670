//! The summary for people.

use std::fmt::{self, Write};

use pmvet_report::command_line;

use super::{File, HotSite, ImageSummary, Summary, ThreadSummary};

/// How many threads, files or mappings are shown; JSON has all.
const SHOWN: usize = 16;

/// Text with or without colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) color: bool,
}

impl Style {
    pub(crate) fn bold<'a>(self, text: &'a str) -> Painted<'a> {
        Painted { text, code: self.color.then_some("1") }
    }

    pub(crate) fn good<'a>(self, text: &'a str) -> Painted<'a> {
        Painted { text, code: self.color.then_some("32") }
    }

    pub(crate) fn warn<'a>(self, text: &'a str) -> Painted<'a> {
        Painted { text, code: self.color.then_some("33") }
    }

    pub(crate) fn bad<'a>(self, text: &'a str) -> Painted<'a> {
        Painted { text, code: self.color.then_some("1;31") }
    }
}

pub(crate) struct Painted<'a> {
    text: &'a str,
    code: Option<&'static str>,
}

impl fmt::Display for Painted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "\x1b[{code}m{}\x1b[0m", self.text),
            None => f.write_str(self.text),
        }
    }
}

pub(crate) fn render(summary: &Summary, style: Style) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut out, summary, style);
    out
}

fn write_all(out: &mut String, s: &Summary, style: Style) -> fmt::Result {
    writeln!(out, "{} {}", style.bold("pmvet trace:"), command_line(&s.command))?;
    let ended = if s.target.status == Some(0) { style.good(&s.target.ended) } else { style.bad(&s.target.ended) };
    writeln!(out, "  {ended}, {:.2} s, CPU {:.2} s", s.wall_seconds, s.cpu_seconds)?;
    if let Some(signal) = s.interrupted {
        writeln!(out, "  {}", style.warn(&format!("interrupted by {signal}")))?;
    }
    if let Some(native) = &s.native {
        let input = if native.without_input { ", without its input, which cannot be read twice" } else { "" };
        writeln!(
            out,
            "  without pmvet {:.2} s, CPU {:.2} s ({}{input}): {:.1} times slower under pmvet",
            native.wall_seconds, native.cpu_seconds, native.ended, native.slowdown
        )?;
    }

    writeln!(out, "\n{} {}", style.bold("events"), grouped(s.events))?;
    for (name, count) in &s.kinds {
        writeln!(out, "  {name:<18} {:>15}", grouped(*count))?;
    }

    if !s.files.is_empty() {
        writeln!(out, "\n{}", style.bold("PM files"))?;
        for file in s.files.iter().take(SHOWN) {
            write_file(out, file, style)?;
        }
        write_rest(out, s.files.len())?;
    }
    if !s.threads.is_empty() {
        write_threads(out, s, style)?;
    }
    if !s.sites.is_empty() {
        writeln!(out, "\n{}", style.bold("hottest sites"))?;
        s.sites.iter().try_for_each(|site| write_site(out, site))?;
    }
    if let Some(trace) = &s.trace {
        let each = trace.bytes as f64 / trace.events.max(1) as f64;
        let name = &trace.path;
        writeln!(out, "\n{} {name}: {}, {each:.1} bytes per event", style.bold("trace"), bytes(trace.bytes))?;
    }
    if !s.notes.is_empty() {
        writeln!(out, "\n{}", style.bold("notes"))?;
        s.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))?;
    }
    Ok(())
}

fn write_file(out: &mut String, file: &File, style: Style) -> fmt::Result {
    let gone = if file.unlinked { ", deleted during the run" } else { "" };
    writeln!(out, "  {} ({}{gone})", file.path, bytes(file.size))?;
    for m in &file.mappings {
        let read_only = if m.writable { "" } else { ", read-only" };
        let end = m.addr.saturating_add(m.len);
        writeln!(out, "    mapped at {:#x}..{end:#x}, offset {:#x}{read_only}", m.addr, m.offset)?;
    }
    if file.mapped > file.mappings.len() as u64 {
        writeln!(out, "    mapped {} times in all", grouped(file.mapped))?;
    }
    let traffic = &file.traffic;
    write!(out, "    stores {} ({})", grouped(traffic.stores), bytes(traffic.stored_bytes))?;
    for (count, what) in [(traffic.loads, "loads"), (traffic.flushes, "flushes"), (traffic.rmw, "locked operations")] {
        write!(out, ", {what} {}", grouped(count))?;
    }
    if traffic.writes > 0 {
        write!(out, ", writes by system calls {} ({})", grouped(traffic.writes), bytes(traffic.written_bytes))?;
    }
    if traffic.syncs > 0 {
        write!(out, ", syncs {}", grouped(traffic.syncs))?;
    }
    writeln!(out)?;
    match &file.image {
        Some(image) => writeln!(out, "    {}", verdict(image, style)),
        None => Ok(()),
    }
}

fn verdict(image: &ImageSummary, style: Style) -> String {
    let text = image_text(image);
    let painted = match image {
        ImageSummary::Same { .. } => style.good(&text),
        ImageSummary::NotChecked { .. } => style.warn(&text),
        ImageSummary::Differs { .. } | ImageSummary::Size { .. } => style.bad(&text),
    };
    painted.to_string()
}

/// What the comparison found, in words.
pub(crate) fn image_text(image: &ImageSummary) -> String {
    match image {
        ImageSummary::Same { bytes } => format!("image: rebuilt from the events, equals the file ({bytes} bytes)"),
        ImageSummary::Differs { offset, image, file } => {
            format!("image: DIFFERS first at offset {offset:#x}: {image:#04x} by the events, {file:#04x} in the file")
        }
        ImageSummary::Size { image, file } => {
            format!("image: DIFFERS in size: {image} bytes by the events, {file} bytes in the file")
        }
        ImageSummary::NotChecked { why } => format!("image: not checked: {why}"),
    }
}

fn write_threads(out: &mut String, s: &Summary, style: Style) -> fmt::Result {
    let processes = if s.processes == 1 { String::new() } else { format!(" (in {} processes)", s.processes) };
    writeln!(out, "\n{}{processes}", style.bold("threads"))?;
    writeln!(
        out,
        "  {:>4} {:>8} {:>9} {:>15} {:>13} {:>13} {:>11} {:>11} {:>9}",
        "id", "process", "OS thread", "events", "stores", "flushes", "fences", "locked ops", "locks"
    )?;
    let mut busiest: Vec<&ThreadSummary> = s.threads.iter().collect();
    busiest.sort_by_key(|t| std::cmp::Reverse(t.events));
    busiest.truncate(SHOWN);
    busiest.sort_by_key(|t| t.thread);
    for t in busiest {
        let counts = [t.events, t.stores, t.flushes, t.fences, t.rmw, t.locks].map(grouped);
        let [events, stores, flushes, fences, rmw, locks] = counts;
        writeln!(
            out,
            "  {:>4} {:>8} {:>9} {events:>15} {stores:>13} {flushes:>13} {fences:>11} {rmw:>11} {locks:>9}",
            t.thread, t.process, t.os_thread
        )?;
    }
    write_rest(out, s.threads.len())
}

fn write_rest(out: &mut String, all: usize) -> fmt::Result {
    match all.saturating_sub(SHOWN) {
        0 => Ok(()),
        rest => writeln!(out, "  … and {rest} more (--format json has all)"),
    }
}

fn write_site(out: &mut String, site: &HotSite) -> fmt::Result {
    let mix: Vec<String> = match &site.kinds[..] {
        [(name, _)] => vec![(*name).to_owned()],
        kinds => kinds.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect(),
    };
    let mut frames = site.frames.iter();
    let place = frames.next().map_or("", |frame| &frame.text);
    writeln!(out, "  {:>13}  {:<12} {place}", grouped(site.count), mix.join(", "))?;
    frames.try_for_each(|frame| writeln!(out, "  {:>13}  {:<12}   inlined into {}", "", "", frame.text))
}

/// 1,234,567
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// 8.0 MiB
pub(crate) fn bytes(number: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} bytes") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1023, 1024, 3 << 30, u64::MAX].map(bytes),
            ["0 bytes", "1023 bytes", "1.0 KiB", "3.0 GiB", "16777216.0 TiB"]
        );
    }

    #[test]
    fn colours_only_if_wanted() {
        assert_eq!(Style { color: false }.bad("x").to_string(), "x");
        assert_eq!(Style { color: true }.bad("x").to_string(), "\x1b[1;31mx\x1b[0m");
    }
}
