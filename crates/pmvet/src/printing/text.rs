//! Aligned columns for people: number, thread, kind, place, size, value, site.

use std::io::Write;

use pmvet_events::paths::shown;
use pmvet_events::{Event, Places, What};

use super::{PmPlace, Printer, SeenSoFar, push_hex};

#[derive(Debug)]
pub(crate) struct Text {
    stacks: bool,
    // Kept to reuse their memory.
    place: Vec<u8>,
    detail: Vec<u8>,
}

/// How many bytes of a value are shown.
const SHOWN: usize = 16;

impl Text {
    pub(crate) fn new(stacks: bool) -> Self {
        Self { stacks, place: Vec::new(), detail: Vec::new() }
    }

    /// `pool+0x1240`, or the address outside of PM files.
    fn place(&mut self, event: &Event<'_>, place: Option<PmPlace>, seen: &SeenSoFar) {
        let out = &mut self.place;
        out.clear();
        let _ = match (place, event.what) {
            (Some(PmPlace { file, offset }), _) => {
                let name = seen.path(file).map(|p| shown(p.file_name().unwrap_or(p.as_os_str())));
                let _ = match name {
                    Some(name) => write!(out, "{name}"),
                    None => write!(out, "file {file}"),
                };
                offset.map_or(Ok(()), |offset| write!(out, "+{offset:#x}"))
            }
            (None, What::Acquire { lock, .. } | What::Release { lock, .. }) => write!(out, "{lock:#x}"),
            (None, What::Sync { object, .. }) => write!(out, "{object:#x}"),
            (None, What::Flush { addr, .. }) => write!(out, "{addr:#x}"),
            (None, What::Module { base, .. }) => write!(out, "{base:#x}"),
            (None, what) => what.range().map_or(Ok(()), |(addr, _)| write!(out, "{addr:#x}")),
        };
    }

    /// The remaining details. Writing to memory cannot fail, so results are dropped.
    fn detail(&mut self, what: &What<'_>) {
        let out = &mut self.detail;
        out.clear();
        let _ = match *what {
            What::Store { value, .. } => return push_value(out, value),
            What::FileWrite { data, .. } => return push_value(out, data),
            What::Connection { connection, address } => write!(out, "{connection} on {address}"),
            What::Request { connection, data } => {
                let shown = String::from_utf8_lossy(&data[..data.len().min(SHOWN)]);
                write!(out, "connection {connection}: {:?}{}", shown, if data.len() > SHOWN { "…" } else { "" })
            }
            What::Reply { connection, .. } => write!(out, "connection {connection}"),
            What::Rmw { old, new, stored, .. } => {
                push_value(out, old);
                out.extend_from_slice(b" -> ");
                push_value(out, new);
                if stored { Ok(()) } else { write!(out, " (not stored)") }
            }
            What::Atomic { old, new, .. } => {
                push_value(out, old);
                out.extend_from_slice(b" -> ");
                return push_value(out, new);
            }
            What::Flush { pm: false, .. } => write!(out, "volatile memory"),
            What::Unsupported { why, .. } => write!(out, "{why}"),
            What::File { size, path, .. } => write!(out, "{} ({size} bytes)", shown(path)),
            What::Map { addr, writable, .. } => {
                write!(out, "at {addr:#x}{}", if writable { "" } else { ", read-only" })
            }
            What::FileResize { size, .. } => write!(out, "to {size} bytes"),
            What::FileRename { to, .. } => write!(out, "to {}", shown(to)),
            What::ThreadStart { process, os_thread } => write!(out, "process {process}, OS thread {os_thread}"),
            What::ThreadCreate { child } | What::ThreadJoin { child } | What::ThreadDetach { child } => {
                write!(out, "thread {child}")
            }
            What::Acquire { how, .. } | What::Release { how, .. } => write!(out, "{}", how.name()),
            What::ProcessStart { process, parent: 0, path } => write!(out, "process {process}: {}", shown(path)),
            What::ProcessStart { process, parent, path } => {
                write!(out, "process {process}, forked from {parent}: {}", shown(path))
            }
            What::ProcessExit { process } => write!(out, "process {process}"),
            What::Exec { path } | What::Module { path, .. } => write!(out, "{}", shown(path)),
            What::Marker { how, text, .. } => write!(out, "{} {text}", how.name()),
            _ => Ok(()),
        };
    }
}

impl Printer for Text {
    fn print(
        &mut self,
        out: &mut Vec<u8>,
        event: &Event<'_>,
        place: Option<PmPlace>,
        seen: &mut SeenSoFar,
        places: &dyn Places,
    ) {
        self.place(event, place, seen);
        self.detail(&event.what);
        let _ = write!(out, "{:>9}  t{:<3} {:<13} ", event.seq, event.thread, event.what.name());
        push_padded(out, &self.place, 24);
        match size(&event.what) {
            Some(size) => {
                let _ = write!(out, " {size:>6}  ");
            }
            None => out.extend_from_slice(b"         "),
        }
        match seen.sites.get(event.site, places) {
            Some(site) => {
                push_padded(out, &self.detail, 20);
                let _ = write!(out, "  {}", site.text);
            }
            None => out.extend_from_slice(&self.detail),
        }
        while out.last() == Some(&b' ') {
            out.pop();
        }
        out.push(b'\n');
        if self.stacks {
            for call in std::iter::once(event.site).chain(places.calls(event.context)) {
                let frames = seen.sites.get(call, places).map_or(&[][..], |site| &site.frames_text);
                for frame in frames {
                    let _ = writeln!(out, "                   at {frame}");
                }
            }
        }
    }
}

fn size(what: &What<'_>) -> Option<u64> {
    match what {
        What::FileWrite { data, .. } => Some(data.len() as u64),
        What::FileRead { len, .. } | What::FileZero { len, .. } | What::FileSync { len, .. } => Some(*len),
        What::Input { len } | What::Output { len, .. } | What::Reply { len, .. } => Some(*len),
        What::Request { data, .. } => Some(data.len() as u64),
        What::Flush { .. } => None,
        _ => what.range().map(|(_, len)| len),
    }
}

/// Up to 8 bytes as the number that the machine reads there, more as bytes.
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    if (1..=8).contains(&value.len()) {
        let number = value.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let _ = write!(out, "{number:#x}");
        return;
    }
    push_hex(out, &value[..value.len().min(SHOWN)]);
    if value.len() > SHOWN {
        out.extend_from_slice("…".as_bytes());
    }
}

/// Pads to a width in characters.
fn push_padded(out: &mut Vec<u8>, text: &[u8], width: usize) {
    out.extend_from_slice(text);
    // UTF-8 continuation bytes take no column.
    let shown = text.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    out.resize(out.len() + width.saturating_sub(shown), b' ');
}
