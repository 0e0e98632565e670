//! Headless Chromium, which uses pages as a person would.
//!
//! Without Chromium what needs it is skipped, with a word about it; `PMVET_REQUIRE_BROWSER=1` makes that a failure.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Notes what must not happen, and knows the rules of accessibility. Before the page's own script.
const WATCH: &str = concat!(
    "<head><script>",
    include_str!("watch.js"),
    include_str!("accessibility.js"),
    "document.currentScript.remove();</script>"
);
const RESULTS: &str = "<pre id=\"pmvet-results\">";

/// The sizes of windows, in pixels.
pub type Size = (u32, u32);

/// A browser, and a folder for what it writes.
#[derive(Debug)]
pub struct Browser {
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// How a person wants pages to look.
#[derive(Debug, Clone, Copy)]
pub enum Theme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Browser {
    /// A browser of this machine. Without one the test has nothing to do, unless `PMVET_REQUIRE_BROWSER` is set: then it fails.
    pub fn find() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let found =
            std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.is_file());
        if found.is_none() {
            assert!(std::env::var_os("PMVET_REQUIRE_BROWSER").is_none(), "no chromium in PATH");
            eprintln!("SKIPPED: no chromium in PATH; on Debian: apt-get install chromium");
        }
        let folder = tempfile::tempdir().expect("a folder");
        found.map(|program| Self { program, folder })
    }

    /// Opens a page in which a script of the test writes its results. Returns them.
    pub fn results(&self, page: &str, script: &str, size: Size) -> String {
        assert_eq!(page.matches("<head>").count(), 1);
        assert_eq!(page.matches("</body>").count(), 1);
        let page = page.replacen("<head>", WATCH, 1);
        let page = page.replacen("</body>", &format!("<script>{script}</script></body>"), 1);
        let file = self.folder.path().join("page.html");
        fs::write(&file, page).expect("written");
        let (dom, log) = self.browse(size, &["--dump-dom".into(), file.into()]);
        let results = dom.split(RESULTS).nth(1).and_then(|rest| rest.split("</pre>").next());
        let results = results.unwrap_or_else(|| panic!("{size:?}: the page did not come to its end\n{log}"));
        assert!(results.contains("end of results"), "{size:?}: {results}");
        assert!(!results.contains("FAIL"), "{size:?}: {results}");
        let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(console.is_empty(), "{size:?}: {console:#?}");
        results.to_owned()
    }

    /// Takes a picture of a page, opened at `hash`.
    pub fn picture(&self, page: &Path, hash: &str, size: Size, theme: Theme, to: &Path) {
        let mut screenshot = OsString::from("--screenshot=");
        screenshot.push(to);
        let scheme = match theme {
            Theme::Dark => 0,
            Theme::Light => 1,
        };
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}").into();
        let (_, log) = self.browse(size, &[screenshot, scheme, format!("file://{}#{hash}", page.display()).into()]);
        assert!(to.is_file(), "{}: {log}", to.display());
    }

    /// What it prints: the page, and the log.
    fn browse(&self, size: Size, arguments: &[OsString]) -> (String, String) {
        let output = Command::new("timeout")
            .arg("240")
            .arg(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
            .args(["--enable-logging=stderr", "--virtual-time-budget=20000"])
            .arg(format!("--user-data-dir={}", self.folder.path().join("profile").display()))
            .arg(format!("--window-size={},{}", size.0, size.1))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("timeout, of coreutils, starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    }
}
