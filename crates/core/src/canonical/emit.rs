//! From the tree to the canonical text, each byte written once.

use std::ops::Range;

use super::error::{JsonError, JsonErrorKind};
use super::pointer::Pointer;
use super::string;
use super::tree::{Node, NodeIndex, NodeKind, Tree, next, wide};

/// Stands where no value counts. It cannot start a JSON value.
const NOTHING: u8 = b'*';

/// How many bytes are copied at once where that many are there.
const SHORT: usize = 16;

/// Appends the canonical text of the document, less what was removed from it.
pub(super) fn whole(tree: &Tree<'_>, out: &mut Vec<u8>) {
    out.reserve(tree.body.len().saturating_add(SHORT));
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
fn element(tree: &Tree<'_>, index: NodeIndex, out: &mut Vec<u8>) -> NodeIndex {
    let Some(node) = tree.nodes.get(wide(index)) else { return next(index) };
    if node.removed {
        out.push(NOTHING);
        return tree.after(index);
    }
    match node.kind {
        NodeKind::Array => {
            array(tree, index, node, out);
            node.end
        }
        NodeKind::Object => {
            object(tree, node, out);
            node.end
        }
        NodeKind::Plain | NodeKind::Number | NodeKind::String | NodeKind::Unescaped => {
            scalar(tree, node, out);
            next(index)
        }
    }
}

fn array(tree: &Tree<'_>, index: NodeIndex, node: &Node, out: &mut Vec<u8>) {
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

fn object(tree: &Tree<'_>, node: &Node, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for index in tree.names(*node) {
        let Some([name, value]) = tree.member(*index) else { continue };
        if value.removed {
            continue;
        }
        out.push(separator);
        separator = b',';
        scalar(tree, name, out);
        out.push(b':');
        match value.kind {
            NodeKind::Array => array(tree, next(*index), value, out),
            NodeKind::Object => object(tree, value, out),
            NodeKind::Plain | NodeKind::Number | NodeKind::String | NodeKind::Unescaped => {
                scalar(tree, value, out);
            }
        }
    }
    if separator == b'{' {
        out.push(separator);
    }
    out.push(b'}');
}

/// A name, or a value that is no container.
#[inline(always)]
fn scalar(tree: &Tree<'_>, node: &Node, out: &mut Vec<u8>) {
    let (source, quotes): (&[u8], usize) = match node.kind {
        // What had no escape needs none: it is canonical as it stands in the body.
        NodeKind::String => (tree.body, 1),
        NodeKind::Plain => (tree.body, 0),
        NodeKind::Number => (&tree.text, 0),
        NodeKind::Unescaped => return string::write(tree.bytes(*node), out),
        NodeKind::Array | NodeKind::Object => return,
    };
    copy(source, wide(node.start).wrapping_sub(quotes)..wide(node.end).wrapping_add(quotes), out);
}

/// Appends a range of a source. Most are short, and copying a fixed number of bytes and cutting off
/// what is too much takes far less time than copying the exact number. (A range that does not exist
/// would wrap to one that does not exist either, and append nothing.)
#[inline(always)]
fn copy(source: &[u8], range: Range<usize>, out: &mut Vec<u8>) {
    let length = range.end.wrapping_sub(range.start);
    let rest = source.get(range.start..).unwrap_or_default();
    match rest.first_chunk::<SHORT>() {
        Some(bytes) if length <= SHORT => {
            let end = out.len().wrapping_add(length);
            out.extend_from_slice(bytes);
            out.truncate(end);
        }
        _ => out.extend_from_slice(rest.get(..length).unwrap_or_default()),
    }
}
