//! The page, in a real browser: headless Chromium uses it as a person would.
//!
//! `PMVET_SCREENSHOTS=folder` keeps pictures of the page, light and dark, narrow and wide.

mod common;

use std::{fs, path::PathBuf};

use pmvet_findings::{Run, Sources};
use pmvet_fixtures::browser::{Browser, Size, Theme};
use pmvet_report::{
    Exporter,
    html::{EarlierRun, Html},
};

const NARROW: Size = (360, 800);
const WIDE: Size = (1600, 1000);

/// The page of a run that comes after one without its first finding.
fn page(run: &Run, sources: &Sources) -> String {
    let before = Run { findings: run.findings.iter().skip(1).cloned().collect(), ..run.clone() };
    let html = Html { earlier: vec![EarlierRun::from(&before)], ..Html::default() };
    let bytes = html.to_bytes(run, sources).expect("writing to memory");
    String::from_utf8(bytes).expect("the page is UTF-8")
}

fn use_page(run: &Run, sources: &Sources, sizes: &[Size]) {
    let Some(browser) = Browser::find() else { return };
    for &size in sizes {
        let results = browser.results(&page(run, sources), include_str!("browser/use.js"), size);
        assert!(results.matches("ok ").count() > 25, "{size:?}: {results}");
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
fn a_clean_run_says_what_was_done() {
    let Some(browser) = Browser::find() else { return };
    let clean = Run { tree: Some(common::tree()), ..common::run(Vec::new()) };
    for (run, said) in [(clean, "Nothing was found."), (Run::default(), "Nothing was analysed")] {
        let script = concat!("const said = \"SAID\";", include_str!("browser/clean.js")).replace("SAID", said);
        for size in [NARROW, WIDE] {
            browser.results(&page(&run, &common::sources()), &script, size);
        }
    }
}

#[test]
fn the_steps_before_the_crash_are_kept_and_the_first_are_counted() {
    let mut finding = common::sample(pmvet_findings::rules::RECOVERY_FAILURE);
    let pmvet_findings::Evidence::Crash { timeline, .. } = &mut finding.evidence else { panic!("no crash") };
    let first = timeline[0].clone();
    timeline.splice(0..0, std::iter::repeat_n(first, 300));
    let page = page(&common::run(vec![finding]), &common::sources());
    assert!(page.contains("\"what\":\"crash\""));
    assert!(page.contains("\"leftOut\":108"));
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
    let bytes = Html { max_findings: 10, ..Html::default() }.to_bytes(&run, &common::sources()).unwrap();
    assert!(String::from_utf8(bytes).unwrap().contains("\"leftOut\":20"));
}

/// Pictures for people to look at. Those of real runs are made by `pictures.rs` of the `pmvet` crate.
#[test]
fn screenshots() {
    let Some(target) = std::env::var_os("PMVET_SCREENSHOTS").map(PathBuf::from) else { return };
    let Some(browser) = Browser::find() else { return };
    fs::create_dir_all(&target).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let run = common::run([common::samples(), common::many(60), vec![common::hostile(common::HOSTILE[0])]].concat());
    fs::write(&file, page(&run, &common::sources())).unwrap();
    let hostile = &run.findings.iter().find(|f| f.count == u64::MAX).unwrap().fingerprint;
    let open = |rule: &str| run.findings.iter().find(|f| f.rule.0 == rule).unwrap().fingerprint.as_str();
    for (name, hash) in [
        ("overview", "overview"),
        ("crash", open("recovery-failure")),
        ("race", open("persistency-race")),
        ("hostile", hostile),
    ] {
        for (width, height) in [NARROW, WIDE] {
            for (suffix, theme) in [("light", Theme::Light), ("dark", Theme::Dark)] {
                let picture = target.join(format!("{name}-{width}-{suffix}.png"));
                browser.picture(&file, hash, (width, height + 1200), theme, &picture);
            }
        }
    }
}
