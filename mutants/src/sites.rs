//! Finds the places of a source file that can be mutated, and what each can become.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    AngleBracketedGenericArguments, Arm, Attribute, BinOp, Block, Expr, ExprIf, ExprLit, ExprMacro,
    ExprMethodCall, ExprPath, ExprRepeat, ExprWhile, ImplItemConst, ImplItemFn, ItemConst,
    ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStatic, ItemTrait, Lit, Local, Macro, Pat, ReturnType,
    Signature, Stmt, StmtMacro, TraitItemConst, TraitItemFn, Type, UnOp,
};

use crate::source::{Constants, Kind, Source, is_compiled, is_integer};

/// How a mutant is put into the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// In the place of a statement: nothing.
    Statement,
    /// In the place of an expression: another one.
    Expression,
    /// At the begin of a function: a statement that returns.
    Body,
}

/// A place, and the texts that may be there instead.
#[derive(Clone, Debug)]
pub struct Site {
    pub shape: Shape,
    /// Bytes of the file; empty for the begin of a function.
    pub range: Range<usize>,
    /// The body around it.
    pub function: Range<usize>,
    /// For a report.
    pub original: String,
    pub mutated: Vec<String>,
}

impl Site {
    /// Sites in the order of their begins, outer ones first.
    pub fn order(&self) -> (usize, Reverse<usize>, Shape) {
        (self.range.start, Reverse(self.range.end), self.shape)
    }
}

/// All sites of a file in the order of their begins, outer ones first.
pub fn find(source: &Source, constants: &Constants) -> Vec<Site> {
    let mut finder =
        Finder { text: &source.text, constants, function: 0..0, sites: BTreeMap::new() };
    finder.visit_file(&source.file);
    finder.sites.into_values().collect()
}

struct Finder<'a> {
    text: &'a str,
    constants: &'a Constants,
    function: Range<usize>,
    sites: BTreeMap<(usize, Reverse<usize>, Shape), Site>,
}

impl Finder<'_> {
    fn text_of(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    /// The text of an operand, in parentheses if it could be read otherwise beside another operator.
    fn operand(&self, node: &Expr) -> String {
        let text = self.text_of(node);
        let is_simple = matches!(
            node,
            Expr::Path(_)
                | Expr::Field(_)
                | Expr::Lit(_)
                | Expr::MethodCall(_)
                | Expr::Call(_)
                | Expr::Paren(_)
        );
        if is_simple { text.to_owned() } else { format!("({text})") }
    }

    fn add(&mut self, shape: Shape, range: Range<usize>, original: &str, mutated: Vec<String>) {
        let function = self.function.clone();
        let original = original.to_owned();
        let site = Site { shape, range, function, original, mutated: Vec::new() };
        self.sites.entry(site.order()).or_insert(site).mutated.extend(mutated);
    }

    fn expression(&mut self, node: &impl Spanned, mutated: Vec<String>) {
        let range = node.span().byte_range();
        if !mutated.is_empty() {
            self.add(Shape::Expression, range.clone(), &self.text[range], mutated);
        }
    }

    fn removal(&mut self, node: &impl Spanned) {
        let range = node.span().byte_range();
        self.add(Shape::Statement, range.clone(), &self.text[range], vec![String::new()]);
    }

    /// A function that is no constant: what it may return at once, and its body.
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        // A constant may be made of a constant function, and no constant can ask which mutant is chosen.
        if !is_compiled(attributes) || signature.constness.is_some() {
            return;
        }
        let outer = std::mem::replace(&mut self.function, block.span().byte_range());
        let body = self.text[self.function.start + 1..self.function.end - 1].trim();
        let begin = self.function.start + 1;
        let values = self.returned(&signature.output);
        let values = values.iter().filter(|value| **value != body);
        let returns = values.map(|value| format!("return {value};").replace(" ;", ";"));
        let returns: Vec<String> = returns.collect();
        if !returns.is_empty() && !body.starts_with("#![") {
            let original = format!("fn {}", signature.ident);
            self.add(Shape::Body, begin..begin, &original, returns);
        }
        self.visit_block(block);
        self.function = outer;
    }

    /// Plain values of the type that a function returns.
    fn returned(&self, output: &ReturnType) -> &'static [&'static str] {
        let ReturnType::Type(_, of) = output else { return &[""] };
        let of = self.text_of(of).replace(char::is_whitespace, "");
        match &*of {
            "()" => &[""],
            "bool" => &["true", "false"],
            "f64" | "f32" => &["0.0", "1.0"],
            "String" => &["String::new()"],
            "io::Result<()>" => &["Ok(())"],
            _ if is_integer(&of) => &["0", "1"],
            _ if of.starts_with("Option<") => &["None"],
            _ if of.starts_with("Vec<") => &["Vec::new()"],
            _ if of.starts_with("Result<(),") => &["Ok(())"],
            _ => &[],
        }
    }

    fn literal(&self, literal: &Lit) -> Vec<String> {
        match literal {
            Lit::Bool(value) => vec![(!value.value).to_string()],
            Lit::Int(int) => {
                let Ok(value) = int.base10_parse::<u128>() else { return Vec::new() };
                let mut values = vec![
                    value.saturating_add(1),
                    value.saturating_sub(1),
                    0,
                    value.saturating_mul(2),
                ];
                values.retain(|changed| *changed != value);
                values.sort_unstable();
                values.dedup();
                values.iter().map(|value| format!("{value}{}", int.suffix())).collect()
            }
            Lit::Float(float) => {
                let text = self.text_of(float);
                let is_zero = float.base10_parse::<f64>().is_ok_and(|value| value == 0.0);
                if is_zero {
                    vec!["1.0".to_owned()]
                } else {
                    vec![format!("({text} * 2.0)"), format!("({text} / 2.0)")]
                }
            }
            _ => Vec::new(),
        }
    }

    fn constant(&self, path: &ExprPath) -> Vec<String> {
        let Some(last) = path.path.segments.last() else { return Vec::new() };
        let text = self.text_of(path);
        match self.constants.kind(&last.ident.to_string()) {
            Some(Kind::Integer) => {
                vec![
                    format!("{text} + 1"),
                    format!("{text} - 1"),
                    "0".to_owned(),
                    format!("{text} * 2"),
                ]
            }
            Some(Kind::Float) => vec![format!("{text} * 2.0"), format!("{text} / 2.0")],
            Some(Kind::Duration) => vec![format!("{text} * 2"), format!("{text} / 2")],
            None => Vec::new(),
        }
    }

    /// The function at the end of another path of the same type.
    fn function_path(&self, path: &ExprPath) -> Option<String> {
        let last = path.path.segments.last().filter(|_| path.path.segments.len() > 1)?;
        let other =
            opposite(&last.ident.to_string()).filter(|other| matches!(*other, "min" | "max"))?;
        let text = self.text_of(path);
        Some(format!("{}{other}", &text[..text.len() - other.len()]))
    }

    /// The tokens of a macro may be anything. The value of `matches!` is known.
    fn macro_call(&mut self, call: &Macro) {
        if call.path.is_ident("matches") {
            let contrary = format!("!{}", self.text_of(call));
            self.expression(call, vec![contrary]);
        }
    }

    fn method(&self, call: &ExprMethodCall) -> Option<String> {
        let name = call.method.to_string();
        let text = self.text_of(call);
        if name == "is_empty" {
            return Some(format!("!{text}"));
        }
        let (all, name) = (call.span().byte_range(), call.method.span().byte_range());
        let other = opposite(&call.method.to_string())?;
        Some(format!(
            "{}{other}{}",
            &self.text[all.start..name.start],
            &self.text[name.end..all.end]
        ))
    }
}

/// The other one of two methods with the same signature.
fn opposite(method: &str) -> Option<&'static str> {
    const PAIRS: [(&str, &str); 8] = [
        ("min", "max"),
        ("min_by_key", "max_by_key"),
        ("is_some", "is_none"),
        ("is_ok", "is_err"),
        ("any", "all"),
        ("saturating_add", "wrapping_add"),
        ("saturating_sub", "wrapping_sub"),
        ("saturating_mul", "wrapping_mul"),
    ];
    PAIRS.iter().find_map(|(one, other)| match method {
        _ if method == *one => Some(*other),
        _ if method == *other => Some(*one),
        _ => None,
    })
}

/// Operators in the place of this one: the neighbour and the contrary of a comparison, the contrary of others.
fn others(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) | BinOp::Rem(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) | BinOp::BitXor(_) => &["&"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) | BinOp::RemAssign(_) => &["/="],
        BinOp::DivAssign(_) => &["*="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) | BinOp::BitXorAssign(_) => &["&="],
        _ => &[],
    }
}

/// Whether the condition binds names, without which its block has no meaning.
fn binds(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

/// Whether the block is the same without this statement, apart from what the statement does.
fn is_removable(expr: &Expr, is_alone: bool) -> bool {
    match expr {
        Expr::MethodCall(_) => true,
        Expr::Call(call) => !is_logging(&call.func),
        Expr::Assign(assign) => {
            !matches!(&*assign.left, Expr::Path(_) | Expr::Infer(_) | Expr::Tuple(_))
        }
        Expr::Await(inner) => is_removable(&inner.base, is_alone),
        Expr::Try(inner) => is_removable(&inner.expr, is_alone),
        // Alone in its block, the condition around it is a site already.
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => !is_alone,
        _ => false,
    }
}

fn is_logging(function: &Expr) -> bool {
    let Expr::Path(path) = function else { return false };
    path.path.segments.iter().any(|segment| segment.ident == "trace" || segment.ident == "tracing")
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if is_compiled(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let is_text = of.is_some_and(|of| of.ident == "Debug" || of.ident == "Display");
        if is_compiled(&item.attrs) && !is_text {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if is_compiled(&item.attrs) {
            visit::visit_item_trait(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        for statement in &block.stmts {
            let Stmt::Expr(expr, semicolon) = statement else { continue };
            let is_unit = match expr {
                Expr::If(branch) => branch.else_branch.is_none() && binds(&branch.cond),
                Expr::ForLoop(_) => true,
                _ => semicolon.is_some() && is_removable(expr, block.stmts.len() == 1),
            };
            if is_unit && !self.text_of(statement).starts_with('#') {
                self.removal(statement);
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_stmt_macro(&mut self, statement: &'ast StmtMacro) {
        if statement.semi_token.is_none() && statement.attrs.is_empty() {
            self.macro_call(&statement.mac);
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if is_compiled(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if !is_compiled(&arm.attrs) {
            return;
        }
        if let Some((_, guard)) = arm.guard.as_ref().filter(|(_, guard)| !binds(guard)) {
            self.expression(&**guard, vec!["true".to_owned(), "false".to_owned()]);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        if !binds(&branch.cond) {
            self.expression(&*branch.cond, vec!["true".to_owned(), "false".to_owned()]);
        }
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, branch: &'ast ExprWhile) {
        if !binds(&branch.cond) {
            self.expression(&*branch.cond, vec!["false".to_owned()]);
        }
        visit::visit_expr_while(self, branch);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        // The span of an expression begins with its attributes.
        if self.text_of(expr).starts_with('#') {
            return;
        }
        match expr {
            Expr::Const(_) => return,
            Expr::Binary(binary) if !binds(expr) => {
                let (left, right) = (self.operand(&binary.left), self.operand(&binary.right));
                let mutated = others(&binary.op).iter();
                let mutated = mutated.map(|other| format!("{left} {other} {right}")).collect();
                self.expression(expr, mutated);
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                let operand = self.text_of(&*unary.expr).to_owned();
                self.expression(expr, vec![operand]);
            }
            Expr::MethodCall(call) => {
                let mutated = self.method(call).into_iter().collect();
                self.expression(expr, mutated);
            }
            Expr::Path(path) => {
                let mut mutated = self.constant(path);
                mutated.extend(self.function_path(path));
                self.expression(expr, mutated);
            }
            Expr::Lit(ExprLit { lit, .. }) => {
                let mutated = self.literal(lit);
                self.expression(expr, mutated);
            }
            Expr::Macro(ExprMacro { mac, .. }) => self.macro_call(mac),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    /// The length of an array is a constant.
    fn visit_expr_repeat(&mut self, repeat: &'ast ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    // Patterns, types and constants can ask nothing.
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast AngleBracketedGenericArguments) {
    }
    fn visit_item_const(&mut self, _: &'ast ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast TraitItemConst) {}
    fn visit_macro(&mut self, _: &'ast Macro) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
