//! The files that a configuration names: whether they are there.

use std::{fs, path::Path};

use crate::store::folder_of;

/// What must be at a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// A file that can be read.
    File,
    /// A folder to put the file in.
    FolderOfIt,
}

/// How a path is looked at: what is wrong with it, in a sentence.
pub(super) type Look<'a> = &'a dyn Fn(&Path, Wanted) -> Result<(), String>;

/// Looks at a path.
pub(super) fn look(path: &Path, wanted: Wanted) -> Result<(), String> {
    match wanted {
        Wanted::File => {
            let shown = path.display();
            match fs::metadata(path) {
                Ok(about) if about.is_dir() => Err(format!("{shown} is a folder")),
                // A pipe is not opened: what is read from it is gone.
                Ok(about) if !about.is_file() => Ok(()),
                found => match found.and_then(|_| fs::File::open(path)) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(format!("{shown} cannot be read: {error}")),
                },
            }
        }
        Wanted::FolderOfIt => {
            let folder = folder_of(path);
            let missing = || format!("the folder {} is not there: make it first", folder.display());
            folder.is_dir().then_some(()).ok_or_else(missing)
        }
    }
}
