//! Events in the notation of the litmus programs' comments.

use crate::tracing::JsonEvent;

/// Gives locks and other objects short names, in the order in which they appear.
#[derive(Debug, Default)]
pub(super) struct Renderer {
    locks: Vec<String>,
    objects: Vec<String>,
}

/// All events of the given kinds.
pub fn render_all(events: &[JsonEvent], kinds: &[&str]) -> Vec<String> {
    let mut renderer = Renderer::default();
    let all = events.iter().map(|e| (e, renderer.event(e)));
    all.filter(|(e, _)| kinds.contains(&e.kind.as_str())).map(|(_, text)| text).collect()
}

impl Renderer {
    pub(super) fn event(&mut self, event: &JsonEvent) -> String {
        let kind = event.kind.as_str();
        let file = file(event);
        let at = at(event);
        let size = event.size.unwrap_or_default();
        let len = event.len.unwrap_or_default();
        match kind {
            "store" | "nt-store" | "kernel-store" | "file-write" => {
                format!("{kind} {at} {size} {}", bytes(&event.value))
            }
            "load" | "interrupted" => format!("{kind} {at} {size}"),
            "rmw" => {
                let failed = if event.stored == Some(false) { " failed" } else { "" };
                format!("rmw {at} {size} {} {}{failed}", bytes(&event.old), bytes(&event.new))
            }
            "clflush" | "clflushopt" | "clwb" if event.pm == Some(false) => format!("{kind} volatile"),
            "clflush" | "clflushopt" | "clwb" | "unsupported" => format!("{kind} {at}"),
            "file" => format!("file {file} {size:#x}"),
            "map" => {
                let how = if event.writable == Some(true) { "rw" } else { "ro" };
                format!("map {file} {:#x} {len:#x} {how}", event.offset.unwrap_or_default())
            }
            "unmap" => format!("unmap {file} {:#x} {len:#x}", event.offset.unwrap_or_default()),
            "file-read" | "file-zero" | "msync" | "fsync" | "fdatasync" | "sync_file_range" => {
                format!("{kind} {at} {len:#x}")
            }
            "file-resize" => format!("{kind}{} {size:#x}", other(file)),
            "file-rename" => format!("{kind} {file} {}", name(&event.to)),
            "file-unlink" => format!("{kind}{}", other(file)),
            "thread-create" | "thread-join" => format!("{kind} {}", event.child.unwrap_or_default()),
            "acquire" => format!("acquire L{} {}", number(&mut self.locks, &event.lock), text(&event.how)),
            // Who gives a lock back need not know how it was taken.
            "release" => format!("release L{}", number(&mut self.locks, &event.lock)),
            "exec" => format!("exec {}", name(&event.path)),
            "marker" if event.addr.as_deref() == Some("0x0") => {
                format!("marker {} 0 {}", text(&event.how), text(&event.text))
            }
            "marker" => format!("marker {} {at} {len} {}", text(&event.how), text(&event.text)),
            _ if event.object.is_some() => format!("{kind} S{}", number(&mut self.objects, &event.object)),
            _ => kind.to_owned(),
        }
    }
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// The last part of a path.
fn name(path: &Option<String>) -> &str {
    text(path).rsplit('/').next().unwrap_or_default()
}

fn file(event: &JsonEvent) -> &str {
    name(&event.file)
}

/// A file's name, unless it is the one that most programs are about.
fn other(file: &str) -> String {
    if file == "pool" { String::new() } else { format!(" {file}") }
}

fn at(event: &JsonEvent) -> String {
    match (file(event), event.offset) {
        ("pool", Some(offset)) => format!("{offset:#x}"),
        (file, Some(offset)) => format!("{file}+{offset:#x}"),
        (_, None) => format!("address {}", text(&event.addr)),
    }
}

/// Hexadecimal, shortened if more than eight bytes are all the same.
fn bytes(value: &Option<String>) -> String {
    let value = text(value);
    let first = value.get(..2).unwrap_or_default();
    let alike = value.len() > 16 && value.as_bytes().chunks(2).all(|c| c == first.as_bytes());
    if alike { format!("{first}*{}", value.len() / 2) } else { value.to_owned() }
}

fn number(names: &mut Vec<String>, address: &Option<String>) -> usize {
    let address = text(address);
    let found = names.iter().position(|n| n == address);
    1 + found.unwrap_or_else(|| {
        names.push(address.to_owned());
        names.len() - 1
    })
}
