//! JSON lines: one object per event, with the fields that its kind has.
//!
//! Addresses are strings in hexadecimal, since many readers lose digits of large numbers. Bytes are in the order in which they
//! are in memory.

use std::ffi::OsStr;
use std::io::Write;

use pmvet_events::paths::shown;
use pmvet_events::{Event, Places, What};

use super::{PmPlace, Printer, SeenSoFar, push_hex};

#[derive(Debug)]
pub(crate) struct JsonLines {
    stacks: bool,
}

impl JsonLines {
    pub(crate) fn new(stacks: bool) -> Self {
        Self { stacks }
    }
}

impl Printer for JsonLines {
    fn print(
        &mut self,
        out: &mut Vec<u8>,
        event: &Event<'_>,
        place: Option<PmPlace>,
        seen: &mut SeenSoFar,
        places: &dyn Places,
    ) {
        let mut object = Object::start(out);
        object.number("seq", event.seq);
        object.number("thread", event.thread.0.into());
        object.text("kind", event.what.name());
        fields(&mut object, &event.what);
        if let Some(place) = place {
            match seen.path(place.file) {
                Some(path) => object.path("file", path),
                None => object.number("file_id", place.file.0.into()),
            }
            if let Some(offset) = place.offset {
                object.number("offset", offset);
            }
        }
        if let Some(site) = seen.sites.get(event.site, places) {
            object.raw("site", &site.json);
        }
        if event.context.0 != 0 {
            object.number("context", event.context.0.into());
        }
        if self.stacks {
            object.key("stack");
            object.out.push(b'[');
            let mut first = true;
            for call in std::iter::once(event.site).chain(places.calls(event.context)) {
                if let Some(site) = seen.sites.get(call, places) {
                    if !std::mem::take(&mut first) {
                        object.out.push(b',');
                    }
                    object.out.extend_from_slice(&site.frames_json);
                }
            }
            object.out.push(b']');
        }
        object.end();
        out.push(b'\n');
    }
}

fn fields(object: &mut Object<'_>, what: &What<'_>) {
    match *what {
        What::Store { addr, value, .. } => {
            object.hex("addr", addr);
            object.number("size", value.len() as u64);
            object.bytes("value", value);
        }
        What::Load { addr, size } | What::Interrupted { addr, size } => {
            object.hex("addr", addr);
            object.number("size", size.into());
        }
        What::Rmw { addr, old, new, stored, .. } => {
            object.hex("addr", addr);
            object.number("size", new.len() as u64);
            object.bytes("old", old);
            object.bytes("new", new);
            object.flag("stored", stored);
        }
        What::Atomic { addr, old, new, .. } => {
            object.hex("addr", addr);
            object.number("size", new.len() as u64);
            object.bytes("old", old);
            object.bytes("new", new);
        }
        What::Flush { addr, pm, .. } => {
            object.hex("addr", addr);
            object.flag("pm", pm);
        }
        What::Fence { .. } | What::ThreadExit => {}
        What::Unsupported { addr, size, why } => {
            object.hex("addr", addr);
            object.number("size", size.into());
            object.text("why", why);
        }
        What::File { file, size, device, inode, .. } => {
            object.number("file_id", file.0.into());
            object.number("size", size);
            object.number("device", device);
            object.number("inode", inode);
        }
        What::Map { addr, len, writable, .. } => {
            object.hex("addr", addr);
            object.number("len", len);
            object.flag("writable", writable);
        }
        What::Unmap { addr, len } | What::Allocate { addr, len } | What::Transaction { addr, len, .. } => {
            object.hex("addr", addr);
            object.number("len", len);
        }
        What::Step { addr, len, state } => {
            if len > 0 {
                object.hex("addr", addr);
                object.number("len", len);
            }
            object.bytes("state", state);
        }
        What::FileWrite { data, .. } => {
            object.number("size", data.len() as u64);
            object.bytes("value", data);
        }
        What::FileRead { len, .. } | What::FileZero { len, .. } | What::FileSync { len, .. } => {
            object.number("len", len)
        }
        What::Input { len } => object.number("len", len),
        What::Output { len, lines } => {
            object.number("len", len);
            object.number("lines", lines);
        }
        What::Connection { connection, address } => {
            object.number("connection", connection.into());
            object.text("address", address);
        }
        What::Request { connection, data } => {
            object.number("connection", connection.into());
            object.number("size", data.len() as u64);
            object.bytes("value", data);
        }
        What::Reply { connection, len, lines } => {
            object.number("connection", connection.into());
            object.number("len", len);
            object.number("lines", lines);
        }
        What::FileResize { size, .. } => object.number("size", size),
        What::FileRename { to, .. } => object.path("to", to),
        What::FileUnlink { .. } => {}
        What::ThreadStart { process, os_thread } => {
            object.number("process", process.into());
            object.number("os_thread", os_thread.into());
        }
        What::ThreadCreate { child } | What::ThreadJoin { child } | What::ThreadDetach { child } => {
            object.number("child", child.0.into());
        }
        What::Acquire { lock, how } | What::Release { lock, how } => {
            object.hex("lock", lock);
            object.text("how", how.name());
        }
        What::Sync { object: synchronised, op } => {
            object.hex("object", synchronised);
            object.text("op", op.name());
        }
        What::ProcessStart { process, parent, path } => {
            object.number("process", process.into());
            object.number("parent", parent.into());
            object.path("path", path);
        }
        What::ProcessExit { process } => object.number("process", process.into()),
        What::Exec { path } => object.path("path", path),
        What::Module { module, base, size, path } => {
            object.number("module", module.0.into());
            object.hex("base", base);
            object.number("size", size);
            object.path("path", path);
        }
        What::Marker { how, addr, len, text } => {
            object.text("how", how.name());
            object.hex("addr", addr);
            object.number("len", len);
            object.text("text", text);
        }
    }
}

/// A JSON object, written field by field. Writing to memory cannot fail, so results are dropped.
pub(crate) struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    pub(crate) fn start(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    pub(crate) fn end(self) {
        self.out.push(b'}');
    }

    /// `key` must not need escapes.
    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    pub(crate) fn raw(&mut self, key: &str, json: &[u8]) {
        self.key(key);
        self.out.extend_from_slice(json);
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        let _ = serde_json::to_writer(&mut *self.out, value);
    }

    pub(crate) fn path(&mut self, key: &str, value: impl AsRef<OsStr>) {
        self.text(key, &shown(&value).to_string());
    }

    pub(crate) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.out, "{value}");
    }

    pub(crate) fn hex(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.out, "\"{value:#x}\"");
    }

    pub(crate) fn bytes(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.out.push(b'"');
        push_hex(self.out, value);
        self.out.push(b'"');
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.raw(key, if value { b"true" } else { b"false" });
    }
}
