//! From the tree to the canonical text, each byte written once.

use super::error::{JsonError, JsonErrorKind};
use super::pointer::Pointer;
use super::string;
use super::tree::{Index, Kind, Node, Tree, next, wide};

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
            Some(index) => _ = element(tree, index, out),
            None => out.push(NOTHING),
        }
        separator = b',';
    }
    out.push(b'}');
    Ok(())
}

/// A value in its place, and the node after it. The depth of the recursion is bounded by that of
/// the document.
fn element(tree: &Tree<'_>, index: Index, out: &mut Vec<u8>) -> Index {
    let Some(node) = tree.node(index) else { return next(index) };
    if node.removed {
        out.push(NOTHING);
        return tree.after(index);
    }
    match node.kind {
        Kind::Plain | Kind::Number => out.extend_from_slice(tree.bytes(node)),
        Kind::String | Kind::Unescaped => quoted(tree, node, out),
        Kind::Array => {
            array(tree, index, node, out);
            return node.end;
        }
        Kind::Object => {
            object(tree, node, out);
            return node.end;
        }
    }
    next(index)
}

fn array(tree: &Tree<'_>, index: Index, node: Node, out: &mut Vec<u8>) {
    let mut child = next(index);
    let mut separator = b'[';
    while child < node.end {
        out.push(separator);
        separator = b',';
        child = element(tree, child, out);
    }
    if separator == b'[' {
        out.push(separator);
    }
    out.push(b']');
}

fn object(tree: &Tree<'_>, node: Node, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for name in tree.names(node) {
        let value = next(*name);
        if tree.node(value).is_some_and(|value| value.removed) {
            continue;
        }
        out.push(separator);
        separator = b',';
        if let Some(name) = tree.node(*name) {
            quoted(tree, name, out);
        }
        out.push(b':');
        element(tree, value, out);
    }
    if separator == b'{' {
        out.push(separator);
    }
    out.push(b'}');
}

fn quoted(tree: &Tree<'_>, node: Node, out: &mut Vec<u8>) {
    if node.kind == Kind::Unescaped {
        return string::write(tree.bytes(node), out);
    }
    // What had no escape needs none: it is canonical as it stands in the body, quotes included.
    let range = wide(node.start).saturating_sub(1)..wide(node.end).saturating_add(1);
    out.extend_from_slice(tree.body.get(range).unwrap_or_default());
}
