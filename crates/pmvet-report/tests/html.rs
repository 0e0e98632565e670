//! The page, in a real browser: headless Chromium uses it as a person would.
//!
//! Without Chromium the browser tests are skipped, with a word about it; `PMVET_REQUIRE_BROWSER=1` makes that a failure.
//! `PMVET_SCREENSHOTS=folder` keeps pictures of the page, light and dark, narrow and wide.

mod common;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pmvet_findings::{Run, Sources};
use pmvet_report::{Exporter, html::Html};

const NARROW: (u32, u32) = (360, 800);
const WIDE: (u32, u32) = (1600, 1000);

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found =
        std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.is_file());
    if found.is_none() {
        assert!(std::env::var_os("PMVET_REQUIRE_BROWSER").is_none(), "no chromium in PATH");
        eprintln!("SKIPPED: no chromium in PATH; on Debian: apt-get install chromium");
    }
    found
}

fn page(run: &Run, sources: &Sources) -> String {
    let bytes = Html::default().to_bytes(run, sources).expect("writing to memory");
    String::from_utf8(bytes).expect("the page is UTF-8")
}

/// The page with the scripts that watch and use it.
fn with_hooks(page: &str) -> String {
    let watch = concat!("<head><script>", include_str!("browser/watch.js"), "</script>");
    let hook = concat!("<script>", include_str!("browser/use.js"), "</script></body>");
    assert_eq!(page.matches("<head>").count(), 1);
    assert_eq!(page.matches("</body>").count(), 1);
    page.replacen("<head>", watch, 1).replacen("</body>", hook, 1)
}

fn browse(browser: &Path, folder: &Path, size: (u32, u32), arguments: &[OsString]) -> (String, String) {
    let output = Command::new("timeout")
        .arg("240")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=20000"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--window-size={},{}", size.0, size.1))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("timeout, of coreutils, starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn use_page(run: &Run, sources: &Sources, sizes: &[(u32, u32)]) {
    let Some(browser) = chromium() else { return };
    for &size in sizes {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.html");
        fs::write(&file, with_hooks(&page(run, sources))).expect("written");
        let (dom, log) = browse(&browser, folder.path(), size, &["--dump-dom".into(), file.into()]);
        let results = dom.split("<pre id=\"pmvet-results\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        let results = results.unwrap_or_else(|| panic!("{size:?}: the page did not come to its end\n{log}"));
        assert!(results.contains("end of results"), "{size:?}: {results}");
        assert!(!results.contains("FAIL"), "{size:?}: {results}");
        assert!(results.matches("ok ").count() > 25, "{size:?}: {results}");
        let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(console.is_empty(), "{size:?}: {console:#?}");
    }
}

#[test]
fn a_run_with_many_findings_can_be_used() {
    use_page(&common::run(common::many(75)), &common::sources(), &[NARROW, WIDE]);
}

#[test]
fn the_samples_with_their_source_can_be_used() {
    let mut run = common::run(common::samples());
    run.known = run.findings.iter().take(1).map(|f| f.fingerprint.clone()).collect();
    use_page(&run, &common::sources(), &[NARROW, WIDE]);
}

#[test]
fn ten_thousand_findings_can_be_used() {
    use_page(&common::run(common::many(10_000)), &common::sources(), &[WIDE]);
}

#[test]
fn hostile_strings_run_no_script() {
    use_page(&common::hostile_run(), &common::sources(), &[NARROW, WIDE]);
}

#[test]
fn the_page_is_one_file_that_asks_for_nothing() {
    let page = page(&common::hostile_run(), &common::sources());
    let (before, data) = page.split_once("id=\"data\">").unwrap();
    let (data, after) = data.split_once("</script>").unwrap();
    assert!(!data.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "data can end its element");
    serde_json::from_str::<serde_json::Value>(data).unwrap();
    for forbidden in ["src=", "href=", "url(", "@import", "http://", "https://", "innerHTML", "eval(", "document.write"]
    {
        assert!(!before.contains(forbidden) && !after.contains(forbidden), "{forbidden}");
    }
    assert_eq!(page.matches("<script").count(), 2);
}

#[test]
fn an_empty_run_is_a_page() {
    let page = page(&Run::default(), &Sources::default());
    assert!(page.contains("</html>"));
}

#[test]
fn too_many_findings_are_left_out_and_counted() {
    let run = common::run(common::many(30));
    let bytes = Html { max_findings: 10 }.to_bytes(&run, &common::sources()).unwrap();
    assert!(String::from_utf8(bytes).unwrap().contains("\"leftOut\":20"));
}

/// Pictures for people to look at.
#[test]
fn screenshots() {
    let Some(target) = std::env::var_os("PMVET_SCREENSHOTS").map(PathBuf::from) else { return };
    let Some(browser) = chromium() else { return };
    fs::create_dir_all(&target).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let run = common::run([common::samples(), common::many(60), vec![common::hostile(common::HOSTILE[0])]].concat());
    fs::write(&file, page(&run, &common::sources())).unwrap();
    let hostile = &run.findings.iter().find(|f| f.count == u64::MAX).unwrap().fingerprint;
    let open = |rule: &str| &run.findings.iter().find(|f| f.rule.0 == rule).unwrap().fingerprint;
    for (name, hash) in [
        ("overview", ""),
        ("crash", open("recovery-failure")),
        ("race", open("persistency-race")),
        ("hostile", hostile),
    ] {
        for size in [NARROW, WIDE] {
            for (theme, scheme) in [("light", 1), ("dark", 0)] {
                let picture = target.join(format!("{name}-{}-{theme}.png", size.0));
                let mut screenshot = OsString::from("--screenshot=");
                screenshot.push(&picture);
                let scheme = format!("--blink-settings=preferredColorScheme={scheme}").into();
                let url = format!("file://{}#{hash}", file.display()).into();
                browse(&browser, folder.path(), (size.0, size.1 + 1200), &[screenshot, scheme, url]);
                assert!(picture.is_file(), "{}", picture.display());
            }
        }
    }
}
