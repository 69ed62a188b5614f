//! The manifests of `contrib` against the schemas of Kubernetes.

use std::process::Command;

use crate::process::prepared;

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/kubernetes");

/// The oldest release that starts an init container which restarts always, and the newest one that
/// the validator knows.
const RELEASES: [&str; 2] = ["1.29", "1.37"];

#[test]
fn the_manifests_fit_the_schemas_of_kubernetes() {
    let Some(python) = prepared("SEMEL_TEST_PYTHON") else { return };
    for release in RELEASES {
        for (name, resources) in [("gateway", 6), ("sidecar", 4)] {
            let mut validate = Command::new(&python);
            validate.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version"]);
            validate.args([release, &format!("{MANIFESTS}/{name}.yaml")]);
            let output = validate.output().unwrap();
            let report = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}, {release}: {report}");
            assert_eq!(report.matches(" passed ").count(), resources, "{report}");
        }
    }
}
