//! What programs read: JSON, SARIF, JUnit. Each is checked against its schema.

mod common;

use std::{fs, path::Path, process::Command};

use pmvet_findings::{Evidence, Finding, Run, Severity, Sources, run::is_pedantic};
use pmvet_report::{
    Exporter,
    json::{self, Json},
    junit::Junit,
    sarif::Sarif,
};
use proptest::prelude::*;
use serde_json::Value;

fn validator(path: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    // One pattern of SARIF's schema, for a property that we do not use, has a bracket too many.
    let text = fs::read_to_string(path).expect("the schema is there").replace("-[a-zA-Z]{2}]?$", "-[a-zA-Z]{2}$");
    let schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    jsonschema::validator_for(&schema).expect("the schema is one")
}

fn assert_valid(validator: &jsonschema::Validator, value: &Value) {
    let errors: Vec<String> =
        validator.iter_errors(value).take(5).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

/// Runs that look different.
fn runs() -> Vec<Run> {
    let mut baseline = common::run(common::samples());
    baseline.known = baseline.findings.iter().take(3).map(|f| f.fingerprint.clone()).collect();
    let mut bare = common::samples();
    for finding in &mut bare {
        finding.places.truncate(1);
        for place in &mut finding.places {
            place.stack.iter_mut().for_each(|frame| {
                frame.file = None;
                frame.line = None;
            });
        }
        finding.evidence = Evidence::Trace { timeline: vec![] };
    }
    let mut placeless = common::sample(pmvet_findings::rules::FLUSH_CLEAN);
    placeless.places.clear();
    vec![
        Run::default(),
        common::run(common::samples()),
        baseline,
        common::run(bare),
        common::run(vec![placeless]),
        common::run(common::many(200)),
        common::hostile_run(),
    ]
}

fn sarif(run: &Run, exporter: Sarif) -> Value {
    let bytes = exporter.to_bytes(run, &common::sources()).expect("writing to memory");
    serde_json::from_slice(&bytes).expect("SARIF is JSON")
}

#[test]
fn json_fits_its_schema_and_reads_back() {
    let schema = validator("../../docs/schema/findings.schema.json");
    for run in runs() {
        let bytes = Json.to_bytes(&run, &Sources::default()).unwrap();
        assert_valid(&schema, &serde_json::from_slice(&bytes).unwrap());
        let read = json::parse(&bytes).unwrap();
        assert_eq!(Json.to_bytes(&read, &Sources::default()).unwrap(), bytes);
        // Paths that are not UTF-8 cannot come back as they were.
        if !run.findings.iter().any(|f| f.count == u64::MAX) {
            assert_eq!(read, run);
        }
    }
}

#[test]
fn json_of_another_format_is_refused() {
    assert_eq!(
        json::parse(b"{\"format\":2}").unwrap_err().to_string(),
        "the export is of format 2, this pmvet reads format 1"
    );
    assert!(json::parse(b"[]").is_err());
    assert!(json::parse(b"{\"format\":1}").is_err());
}

#[test]
fn sarif_fits_its_schema() {
    let schema = validator("tests/fixtures/sarif-2.1.0-rtm.5.json");
    for run in runs() {
        for pedantic in [false, true] {
            assert_valid(&schema, &sarif(&run, Sarif { pedantic, ..Sarif::default() }));
        }
    }
}

#[test]
fn sarif_says_what_code_scanning_needs() {
    let mut run = common::run(common::samples());
    run.known = [run.findings[1].fingerprint.clone()].into();
    let document = sarif(&run, Sarif::default());
    let run_object = &document["runs"][0];
    let results = run_object["results"].as_array().unwrap();
    let shown = run.findings.iter().filter(|finding| !is_pedantic(finding)).count();
    assert_eq!(results.len(), shown, "all but the pedantic ones");
    let shown = run.findings.iter().filter(|finding| !is_pedantic(finding));
    for (result, finding) in results.iter().zip(shown) {
        assert_eq!(result["ruleId"], finding.rule.0);
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(run_object["tool"]["driver"]["rules"][index]["id"], finding.rule.0);
        let location = &result["locations"][0]["physicalLocation"];
        assert_eq!(location["artifactLocation"]["uri"], "list.c");
        assert_eq!(location["artifactLocation"]["uriBaseId"], "%SRCROOT%");
        assert!(location["region"]["startLine"].as_u64().unwrap() > 1);
        assert_eq!(result["partialFingerprints"]["pmvetFingerprint/v1"], finding.fingerprint.as_str());
        assert!(!result["codeFlows"][0]["threadFlows"][0]["locations"].as_array().unwrap().is_empty());
    }
    assert_eq!(results[0]["baselineState"], "new");
    assert_eq!(results[1]["baselineState"], "unchanged");
    assert_eq!(results[0]["level"], "error");
}

#[test]
fn sarif_keeps_within_the_limits() {
    let mut long = common::sample(pmvet_findings::rules::RECOVERY_FAILURE);
    long.happened = "x".repeat(100_000);
    if let Evidence::Crash { timeline, .. } = &mut long.evidence {
        *timeline = std::iter::repeat_with(common::timeline).take(3000).flatten().collect();
    }
    let mut findings = common::many(6000);
    findings.insert(0, long);
    let run = common::run(findings);
    let bytes = Sarif { pedantic: true, ..Sarif::default() }.to_bytes(&run, &common::sources()).unwrap();
    assert!(bytes.len() < 10_000_000, "{} bytes", bytes.len());
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    let results = document["runs"][0]["results"].as_array().unwrap();
    assert!(results.len() <= 5000);
    let notes = document["runs"][0]["invocations"][0]["toolExecutionNotifications"].to_string();
    assert!(notes.contains(&format!("{} results left out", run.findings.len() - results.len())), "{notes}");
    for result in results {
        assert!(result["message"]["text"].as_str().unwrap().chars().count() <= 1000);
        for flow in result["codeFlows"][0]["threadFlows"].as_array().unwrap() {
            assert!(flow["locations"].as_array().unwrap().len() <= 1000);
        }
    }
    let few = sarif(&run, Sarif { max_results: 3, ..Sarif::default() });
    assert_eq!(few["runs"][0]["results"].as_array().unwrap().len(), 3);
}

fn junit(run: &Run, exporter: Junit) -> String {
    let bytes = exporter.to_bytes(run, &common::sources()).expect("writing to memory");
    String::from_utf8(bytes).expect("JUnit is text")
}

#[test]
fn junit_fits_the_schema() {
    let xmllint = Command::new("xmllint").arg("--version").output().is_ok();
    if !xmllint {
        assert!(std::env::var_os("PMVET_REQUIRE_XMLLINT").is_none(), "no xmllint in PATH");
        eprintln!("SKIPPED in part: no xmllint in PATH; on Debian: apt-get install libxml2-utils");
    }
    let folder = tempfile::tempdir().unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/junit-jenkins.xsd");
    for (index, run) in runs().iter().enumerate() {
        for fail_on in [Severity::Performance, Severity::Warning, Severity::Error] {
            let xml = junit(run, Junit { fail_on, pedantic: true });
            assert_structure(&xml);
            let file = folder.path().join(format!("{index}.xml"));
            fs::write(&file, xml).unwrap();
            if xmllint {
                let output =
                    Command::new("xmllint").args(["--nonet", "--noout", "--schema"]).arg(&schema).arg(&file).output();
                let output = output.unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}

/// What Ant's schema asks for beyond that of Jenkins: attributes, and the order of elements.
fn assert_structure(xml: &str) {
    let document = roxmltree::Document::parse(xml).expect("JUnit is XML");
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    for (index, suite) in root.children().filter(|node| node.is_element()).enumerate() {
        assert_eq!(suite.tag_name().name(), "testsuite");
        assert_eq!(suite.attribute("id"), Some(index.to_string().as_str()));
        for name in ["package", "name", "hostname", "timestamp"] {
            assert!(suite.attribute(name).is_some_and(|value| !value.is_empty()), "{name}");
        }
        let names: Vec<&str> = suite.children().filter(|n| n.is_element()).map(|n| n.tag_name().name()).collect();
        let cases = names.iter().filter(|name| **name == "testcase").count();
        let mut expected = vec!["properties"];
        expected.extend(vec!["testcase"; cases]);
        expected.extend(["system-out", "system-err"]);
        assert_eq!(names, expected);
        let number =
            |name: &str| suite.attribute(name).and_then(|value| value.parse::<usize>().ok()).expect("a number");
        let having = |child: &str| suite.descendants().filter(|node| node.has_tag_name(child)).count();
        assert_eq!(number("tests"), cases);
        assert_eq!(number("failures"), having("failure"));
        assert_eq!(number("skipped"), having("skipped"));
        for case in suite.children().filter(|node| node.has_tag_name("testcase")) {
            for name in ["name", "classname"] {
                let value = case.attribute(name).expect("an attribute");
                assert!(!value.is_empty() && value.trim() == value && !value.contains("  "), "{value:?}");
            }
            assert!(case.attribute("time").is_some_and(|time| time.parse::<f64>().is_ok()));
            assert!(case.children().filter(|node| node.is_element()).count() <= 1);
        }
    }
}

#[test]
fn junit_has_a_case_for_every_rule_that_was_checked() {
    let mut run = common::run(common::samples());
    let document = junit(&run, Junit::default());
    assert!(document.contains("name=\"recovery-failure\" time=\"0.000\"><failure type=\"error\""));
    assert!(document.contains("name=\"flush-clean\" time=\"0.000\"/>"), "performance does not fail by default");
    assert!(!document.contains("name=\"flush-covers-stores\""), "pedantic");
    assert!(document.contains("classname=\"pmvet.failure-points\" name=\"push\" time=\"0.000\"><failure"));
    run.engines = vec!["rules".into()];
    run.findings.clear();
    let document = junit(&run, Junit::default());
    assert!(document.contains("name=\"unpersisted-store\" time=\"0.000\"/>"));
    assert!(!document.contains("persistency-race"), "a rule that was not checked has not passed");
}

#[test]
fn the_workflow_example_is_yaml_with_jobs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ci/github-actions.yml");
    let workflow: serde_yaml_ng::Value = serde_yaml_ng::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for key in ["name", "on", "permissions", "jobs"] {
        assert!(workflow.get(key).is_some(), "{key}");
    }
    let steps = workflow["jobs"]["check"]["steps"].as_sequence().unwrap();
    assert!(workflow["jobs"]["check"]["runs-on"].is_string());
    for step in steps {
        assert!(step.get("run").is_some() != step.get("uses").is_some(), "{step:?}");
        if let Some(script) = step.get("run").and_then(|run| run.as_str()) {
            let output = Command::new("bash").args(["-n", "-c", script]).output().unwrap();
            assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_written_by_every_format(text in any::<String>()) {
        let run = Run { id: text.clone(), ..common::run(vec![common::hostile(&text)]) };
        let bytes = Json.to_bytes(&run, &Sources::default()).unwrap();
        prop_assert_eq!(&json::parse(&bytes).unwrap().findings[0].title, &text);
        sarif(&run, Sarif::default());
        roxmltree::Document::parse(&junit(&run, Junit::default())).unwrap();
        let html = pmvet_report::html::Html::default().to_bytes(&run, &common::sources()).unwrap();
        prop_assert_eq!(String::from_utf8(html).unwrap().matches("<script").count(), 2);
    }

    #[test]
    fn garbage_is_no_run(bytes in any::<Vec<u8>>()) {
        prop_assert!(json::parse(&bytes).is_err());
    }
}

#[test]
fn findings_of_unknown_rules_are_shown_all_the_same() {
    let finding = Finding { rule: pmvet_findings::RuleId("new-rule".into()), ..common::samples().remove(0) };
    let run = common::run(vec![finding]);
    assert_eq!(sarif(&run, Sarif::default())["runs"][0]["results"][0]["ruleId"], "new-rule");
    assert!(junit(&run, Junit::default()).contains("name=\"new-rule\""));
}
