//! Whether to write in colours.

use std::io::IsTerminal;

/// Whether this is a terminal whose user did not ask for no colours (<https://no-color.org>).
pub fn is_colourful(out: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && out.is_terminal()
}
