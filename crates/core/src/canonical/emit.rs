//! From the tree to the canonical text, each byte written once.

use super::error::{JsonError, JsonErrorKind};
use super::pointer::Pointer;
use super::string;
use super::tree::{Index, Kind, Node, Tree, next};

/// Stands where no value counts. It cannot start a JSON value.
const NOTHING: u8 = b'*';

/// Appends the canonical text of the document, less what was removed from it.
pub(super) fn whole(tree: &Tree<'_>, out: &mut Vec<u8>) {
    out.reserve(tree.body.len());
    element(tree, 0, out);
}

/// Appends what the pointers lead to, each bound to its pointer.
pub(super) fn only(
    tree: &Tree<'_>,
    pointers: &[Pointer],
    out: &mut Vec<u8>,
) -> Result<(), JsonError> {
    let mut found: Vec<_> = pointers.iter().map(|pointer| (pointer, tree.find(pointer))).collect();
    if found.iter().all(|(_, index)| index.is_none()) {
        return Err(JsonError::new(JsonErrorKind::NothingSelected, 0));
    }
    found.sort_unstable();
    found.dedup();
    out.extend_from_slice(b"only");
    let mut separator = b'{';
    for (pointer, index) in found {
        out.push(separator);
        string::write(pointer.as_str().as_bytes(), out);
        out.push(b':');
        match index {
            Some(index) => element(tree, index, out),
            None => out.push(NOTHING),
        }
        separator = b',';
    }
    out.push(b'}');
    Ok(())
}

/// A value in its place. The depth of the recursion is bounded by that of the document.
fn element(tree: &Tree<'_>, index: Index, out: &mut Vec<u8>) {
    let Some(node) = tree.node(index) else { return };
    match node.kind {
        _ if node.removed => out.push(NOTHING),
        Kind::Plain | Kind::Number => out.extend_from_slice(tree.bytes(node)),
        Kind::String | Kind::Unescaped => quoted(tree, node, out),
        Kind::Array => array(tree, index, node, out),
        Kind::Object => object(tree, node, out),
    }
}

fn array(tree: &Tree<'_>, index: Index, node: Node, out: &mut Vec<u8>) {
    out.push(b'[');
    let mut child = next(index);
    while child < node.end {
        if child != next(index) {
            out.push(b',');
        }
        element(tree, child, out);
        child = tree.after(child);
    }
    out.push(b']');
}

fn object(tree: &Tree<'_>, node: Node, out: &mut Vec<u8>) {
    out.push(b'{');
    let mut first = true;
    for name in tree.names(node) {
        let value = next(*name);
        if tree.node(value).is_some_and(|value| value.removed) {
            continue;
        }
        if !first {
            out.push(b',');
        }
        first = false;
        if let Some(name) = tree.node(*name) {
            quoted(tree, name, out);
        }
        out.push(b':');
        element(tree, value, out);
    }
    out.push(b'}');
}

fn quoted(tree: &Tree<'_>, node: Node, out: &mut Vec<u8>) {
    if node.kind == Kind::Unescaped {
        return string::write(tree.bytes(node), out);
    }
    // What had no escape needs none: it is canonical as it stands in the body.
    out.push(b'"');
    out.extend_from_slice(tree.bytes(node));
    out.push(b'"');
}
