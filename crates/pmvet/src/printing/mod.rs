//! Single events for people and programs.
//!
//! * [`SeenSoFar`] — what the events so far have said about files, mappings and modules.
//! * [`text`], [`json`] — one file per format. * [`filter`] — which events are wanted.

pub(crate) mod filter;
pub(crate) mod json;
pub(crate) mod sites;
pub(crate) mod text;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use pmvet_events::{Event, FileId, Places, What};

use crate::locate::Locator;
use sites::Sites;

/// Appends one event, with its end of line.
pub(crate) trait Printer {
    fn print(
        &mut self,
        out: &mut Vec<u8>,
        event: &Event<'_>,
        place: Option<PmPlace>,
        seen: &mut SeenSoFar,
        places: &dyn Places,
    );
}

/// The PM file of an event, and the place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PmPlace {
    pub(crate) file: FileId,
    pub(crate) offset: Option<u64>,
}

/// What is known from the events before.
#[derive(Debug)]
pub(crate) struct SeenSoFar {
    locator: Locator,
    paths: HashMap<FileId, PathBuf>,
    pub(crate) sites: Sites,
}

impl SeenSoFar {
    /// Of a run that was recorded at `time`.
    pub(crate) fn new(time: SystemTime) -> Self {
        Self { locator: Locator::default(), paths: HashMap::new(), sites: Sites::new(time) }
    }

    pub(crate) fn update(&mut self, event: &Event<'_>) {
        match event.what {
            What::File { file, path, .. } => {
                self.paths.insert(file, path.to_owned());
            }
            What::FileRename { file, to } => {
                self.paths.insert(file, to.to_owned());
            }
            What::Module { module, base, path, .. } => self.sites.add_module(module, base, path),
            _ => self.locator.update(event),
        }
    }

    pub(crate) fn path(&self, file: FileId) -> Option<&Path> {
        self.paths.get(&file).map(PathBuf::as_path)
    }

    pub(crate) fn place(&self, event: &Event<'_>) -> Option<PmPlace> {
        let at = |file, offset| Some(PmPlace { file, offset: Some(offset) });
        match event.what {
            What::Map { file, offset, .. }
            | What::FileWrite { file, offset, .. }
            | What::FileRead { file, offset, .. }
            | What::FileZero { file, offset, .. }
            | What::FileSync { file, offset, .. } => at(file, offset),
            What::File { file, .. }
            | What::FileResize { file, .. }
            | What::FileRename { file, .. }
            | What::FileUnlink { file } => Some(PmPlace { file, offset: None }),
            // A flush may have any address in its line.
            What::Flush { addr, .. } => {
                self.locator.find(event.thread, addr, 1).and_then(|(file, offset)| at(file, offset))
            }
            what => {
                let (addr, len) = what.range()?;
                let (file, offset) = self.locator.find(event.thread, addr, len)?;
                at(file, offset)
            }
        }
    }
}

/// Bytes in the order in which they are in memory.
pub(crate) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    HEXLOWER.encode_mut(bytes, &mut out[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::every_kind;
    use pmvet_events::{Context, ContextId, Site, SiteId, ThreadId};

    struct Nowhere;

    impl Places for Nowhere {
        fn site(&self, id: SiteId) -> Option<Site> {
            Some(Site { pc: 0x1000 + u64::from(id.0), module: Default::default() })
        }

        fn context(&self, id: ContextId) -> Option<Context> {
            (id.0 == 2).then_some(Context { parent: ContextId(1), call: SiteId(9) })
        }
    }

    fn event(what: What<'_>) -> Event<'_> {
        Event { seq: 3, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what }
    }

    /// A process with one file mapped at 0x1000.
    fn seen() -> SeenSoFar {
        let mut seen = SeenSoFar::new(SystemTime::now());
        seen.update(&event(What::ProcessStart { process: 7, parent: 0, path: "/bin/prog".as_ref() }));
        seen.update(&event(What::File { file: FileId(1), size: 8192, device: 1, inode: 1, path: "/pm/pool".as_ref() }));
        seen.update(&event(What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0x40000, writable: true }));
        seen
    }

    fn print(printer: &mut dyn Printer, event: &Event<'_>) -> String {
        let mut seen = seen();
        let mut out = Vec::new();
        let place = seen.place(event);
        printer.print(&mut out, event, place, &mut seen, &Nowhere);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_kind_is_one_line_of_valid_json() {
        for what in every_kind() {
            let line = print(&mut json::JsonLines::new(true), &event(what));
            assert_eq!(line.matches('\n').count(), 1);
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!((value["seq"].as_u64(), value["kind"].as_str()), (Some(3), Some(what.name())), "{line}");
        }
    }

    #[test]
    fn the_json_of_a_store() {
        let how = pmvet_events::event::StoreKind::Regular;
        let mut store = event(What::Store { addr: 0x1010, value: &[1, 0, 0xff], how });
        store.site = SiteId(5);
        store.context = ContextId(2);
        let line = print(&mut json::JsonLines::new(true), &store);
        let expected = concat!(
            r#"{"seq":3,"thread":1,"kind":"store","addr":"0x1010","size":3,"value":"0100ff","file":"/pm/pool","#,
            r#""offset":262160,"site":{"pc":"0x1005"},"context":2,"stack":[{"pc":"0x1005"},{"pc":"0x1009"}]}"#,
            "\n"
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn the_text_of_events() {
        let text =
            |what| print(&mut text::Text::new(false), &event(what)).split_whitespace().collect::<Vec<_>>().join(" ");
        let how = pmvet_events::event::StoreKind::Regular;
        assert_eq!(text(What::Store { addr: 0x1010, value: &[1, 2], how }), "3 t1 store pool+0x40010 2 0x201");
        let long = [7; 20];
        let line = text(What::Store { addr: 0x5000, value: &long, how });
        assert_eq!(line, format!("3 t1 store 0x5000 20 {}…", "07".repeat(16)));
        let rmw = What::Rmw { addr: 0x1000, old: &[1], new: &[1], stored: false, discards: false };
        assert_eq!(text(rmw), "3 t1 rmw pool+0x40000 1 0x1 -> 0x1 (not stored)");
        for what in every_kind() {
            assert!(text(what).contains(what.name()));
        }
    }

    #[test]
    fn renamed_files_have_their_new_name() {
        let mut seen = seen();
        seen.update(&event(What::FileRename { file: FileId(1), to: "/pm/new".as_ref() }));
        assert_eq!(seen.path(FileId(1)), Some(Path::new("/pm/new")));
    }
}
