//! Checks that the files of a configuration exist.

use std::{fs, path::Path};

use crate::private_files::folder_of;

/// What to check at a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileCheck {
    /// A readable file.
    File,
    /// The folder that will contain the file.
    FolderOfIt,
}

/// Checks a path; the error is a message for the report.
pub(super) type CheckFile<'a> = &'a dyn Fn(&Path, FileCheck) -> Result<(), String>;

/// Checks a path on the file system.
pub(super) fn check_file(path: &Path, wanted: FileCheck) -> Result<(), String> {
    match wanted {
        FileCheck::File => {
            let shown = path.display();
            match fs::metadata(path) {
                Ok(about) if about.is_dir() => Err(format!("{shown} is a folder")),
                // A pipe is not opened: reading consumes its content.
                Ok(about) if !about.is_file() => Ok(()),
                found => match found.and_then(|_| fs::File::open(path)) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(format!("{shown} cannot be read: {error}")),
                },
            }
        }
        FileCheck::FolderOfIt => {
            let folder = folder_of(path);
            let missing =
                || format!("the folder {} does not exist; create it first", folder.display());
            folder.is_dir().then_some(()).ok_or_else(missing)
        }
    }
}
