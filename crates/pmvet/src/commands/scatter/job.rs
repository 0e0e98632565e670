//! Jobs for schedulers: a script for Slurm, which a plain shell runs as well, and a manifest for Kubernetes.

use std::path::Path;

use serde_json::json;

use super::shared::{ScatteredWork, SharedFolder};
use crate::exit::Error;
use crate::shell_words::quoted;

/// How often a killed task is put back into the queue.
const MOST_RESTARTS: u32 = 3;

/// The array job. Slurm restarts a task itself if its node fails; a killed task puts itself back into the queue.
pub(super) fn slurm(work: &ScatteredWork, shared: &SharedFolder, pmvet: &Path) -> Result<String, Error> {
    let pmvet = pmvet.to_str().ok_or_else(|| Error::Usage(format!("{}: scripts cannot name it", pmvet.display())))?;
    let (engine, tasks) = (work.engine.name(), work.tasks);
    let (pmvet, folder) = (quoted(pmvet), quoted(&shared.text()));
    Ok(format!(
        r#"#!/bin/sh
#SBATCH --job-name=pmvet-{engine}
#SBATCH --array=1-{tasks}
#SBATCH --requeue
#SBATCH --output=/dev/null
# Each task does its part of the work and leaves it in the shared folder. A task that was killed goes on where it was.
shared={folder}
task=${{SLURM_ARRAY_TASK_ID:?}}
mkdir -p "$shared/tasks/$task" || exit
{pmvet} scatter --shared "$shared" --task "$task" >> "$shared/tasks/$task/log" 2>&1
code=$?
if [ $code -gt 128 ] && [ -n "$SLURM_ARRAY_JOB_ID" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_RESTARTS} ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$task"
fi
exit $code
"#
    ))
}

/// An indexed Job. The volume has the shared folder as its root.
pub(super) fn kubernetes(
    work: &ScatteredWork,
    shared: &SharedFolder,
    image: &str,
    claim: &str,
) -> Result<String, Error> {
    let folder =
        work.folder.0.to_str().ok_or_else(|| Error::Usage("the current folder has no text for a name".into()))?;
    let task = "exec pmvet scatter --shared \"$0\" --task $((JOB_COMPLETION_INDEX + 1))";
    let name = format!("pmvet-{}", work.engine.name());
    let manifest = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name },
        "spec": {
            "completionMode": "Indexed",
            "completions": work.tasks,
            "parallelism": work.tasks,
            "backoffLimit": work.tasks.saturating_mul(MOST_RESTARTS),
            "template": { "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": name,
                    "image": image,
                    "command": ["sh", "-c", task, shared.text()],
                    "workingDir": folder,
                    "volumeMounts": [{ "name": "shared", "mountPath": shared.text() }],
                }],
                "volumes": [{ "name": "shared", "persistentVolumeClaim": { "claimName": claim } }],
            } },
        },
    });
    let mut text = String::new();
    write_yaml(&manifest, 0, &mut text);
    Ok(text)
}

/// Writes a value in YAML's block style. Scalars are written as JSON, which YAML reads too.
fn write_yaml(value: &serde_json::Value, depth: usize, text: &mut String) {
    use serde_json::Value::{Array, Object};
    let indent = "  ".repeat(depth);
    match value {
        Object(fields) => {
            for (name, value) in fields {
                match value {
                    Object(_) | Array(_) => {
                        text.push_str(&format!("{indent}{name}:\n"));
                        write_yaml(value, depth + 1, text);
                    }
                    plain => text.push_str(&format!("{indent}{name}: {plain}\n")),
                }
            }
        }
        Array(items) => {
            for item in items {
                let mut inner = String::new();
                write_yaml(item, depth + 1, &mut inner);
                // The dash takes the place of the first line's indentation.
                text.push_str(&format!("{indent}- {}", inner.trim_start()));
            }
        }
        plain => text.push_str(&format!("{indent}{plain}\n")),
    }
}
