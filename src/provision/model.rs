//! The data model: `sql/model/*.sql`, cut into the objects it defines.
//!
//! Every statement stands under a header `-- @kind name`. Tables list their columns one a line and
//! nothing else, so that the same text says which types an existing table has to have.

use once_cell::sync::Lazy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Function,
    Sequence,
    Table,
    Constraint,
    Index,
    ForeignKey,
    Rls,
    /// A function that the application calls by its contract name.
    Contract,
    Policy,
    Trigger,
}

impl Kind {
    /// What `provision` creates first, while no table is locked.
    pub const FUNCTIONS: &'static [Kind] = &[Kind::Function, Kind::Contract];

    /// What it creates then, in this order; `attach` creates the triggers.
    pub const OF_TABLES: &'static [Kind] = &[
        Kind::Sequence,
        Kind::Table,
        Kind::Constraint,
        Kind::Index,
        Kind::ForeignKey,
        Kind::Rls,
        Kind::Policy,
    ];

    fn parse(word: &str) -> Option<Kind> {
        Some(match word {
            "function" => Kind::Function,
            "sequence" => Kind::Sequence,
            "table" => Kind::Table,
            "constraint" => Kind::Constraint,
            "index" => Kind::Index,
            "foreign_key" => Kind::ForeignKey,
            "rls" => Kind::Rls,
            "contract" => Kind::Contract,
            "policy" => Kind::Policy,
            "trigger" => Kind::Trigger,
            _ => return None,
        })
    }

    /// As a DBA would call it.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Function | Kind::Contract => "function",
            Kind::Sequence => "sequence",
            Kind::Table => "table",
            Kind::Constraint => "constraint",
            Kind::Index => "index",
            Kind::ForeignKey => "foreign key",
            Kind::Rls => "row-level security",
            Kind::Policy => "policy",
            Kind::Trigger => "trigger",
        }
    }
}

/// One object of the model.
#[derive(Debug)]
pub struct Object {
    pub kind: Kind,
    /// The table it belongs to; empty for a function or a sequence.
    pub table: &'static str,
    pub name: &'static str,
    pub sql: &'static str,
}

/// A column that a table has to have.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// As `format_type` writes it.
    pub ty: &'static str,
}

/// The files, parents before children: foreign keys fire in the order of their creation.
const FILES: &[&str] = &[
    include_str!("../../sql/model/functions.sql"),
    include_str!("../../sql/model/managed_accounts.sql"),
    include_str!("../../sql/model/workspaces.sql"),
    include_str!("../../sql/model/sessions.sql"),
    include_str!("../../sql/model/session_turns.sql"),
    include_str!("../../sql/model/session_turn_attempts.sql"),
    include_str!("../../sql/model/sandbox_leases.sql"),
    include_str!("../../sql/model/sandbox_lease_holders.sql"),
    include_str!("../../sql/model/sandbox_pty_sessions.sql"),
    include_str!("../../sql/model/sandbox_workspace_mutation_admissions.sql"),
    include_str!("../../sql/model/sandbox_retained_processes.sql"),
    include_str!("../../sql/model/sandbox_command_output.sql"),
    include_str!("../../sql/model/workspace_instruction_policy_revisions.sql"),
    include_str!("../../sql/model/workspace_instruction_policy_heads.sql"),
    include_str!("../../sql/model/workspace_instruction_policy_activation_events.sql"),
    include_str!("../../sql/model/sandbox_checkpoint_artifacts.sql"),
    include_str!("../../sql/model/contract.sql"),
    include_str!("../../sql/model/triggers.sql"),
];

static OBJECTS: Lazy<Vec<Object>> = Lazy::new(|| FILES.iter().copied().flat_map(parse).collect());

/// The objects of one kind, in the order of their creation.
pub fn objects(kind: Kind) -> impl Iterator<Item = &'static Object> {
    OBJECTS.iter().filter(move |object| object.kind == kind)
}

/// The functions of the data schema that a policy asks.
pub fn asked_by(policy: &Object) -> impl Iterator<Item = &'static Object> {
    let is_policy = policy.kind == Kind::Policy;
    objects(Kind::Contract)
        .filter(move |f| is_policy && !f.is_private() && policy.sql.contains(f.name))
}

/// The policies that ask a function of the data schema.
pub fn asking(function: &Object) -> impl Iterator<Item = &'static Object> {
    let name = function.name;
    objects(Kind::Policy).filter(move |policy| asked_by(policy).any(|asked| asked.name == name))
}

/// Cuts a file at its headers; what stands before the first one is prose.
fn parse(file: &'static str) -> Vec<Object> {
    file.split("-- @")
        .skip(1)
        .filter_map(|section| {
            let (header, sql) = section.split_once('\n')?;
            let (kind, name) = header.trim().split_once(' ')?;
            let kind = Kind::parse(kind)?;
            let (table, name) = match kind {
                Kind::Function | Kind::Contract | Kind::Sequence => ("", name),
                Kind::Index => (sql.split_once(" ON ")?.1.split([' ', '\n']).next()?, name),
                Kind::Table | Kind::Rls => (name, name),
                _ => name.split_once('.')?,
            };
            Some(Object {
                kind,
                table,
                name,
                sql: sql.trim(),
            })
        })
        .collect()
}

/// Tables that a live application may do without: no guard reads them, only operations use them.
const OPTIONAL: &[&str] = &["sandbox_command_output"];

impl Object {
    /// Whether it is, or belongs to, a table that may be absent.
    pub fn is_optional(&self) -> bool {
        OPTIONAL.contains(&self.table)
    }

    /// The table that it changes, and the one that it refers to.
    pub fn tables(&self) -> impl Iterator<Item = &'static str> {
        let referred = self.sql.split_once("REFERENCES ").map(|(_, rest)| rest);
        let name = referred.and_then(|rest| rest.split([' ', '\n', ';']).next());
        std::iter::once(self.table).chain(name)
    }

    /// Whether a contract function is the same for every data schema.
    pub fn is_shared(&self) -> bool {
        self.is_private() && !self.sql.contains("{data_schema}")
    }

    /// The extension's functions that it calls.
    pub fn natives(&self) -> impl Iterator<Item = &'static str> {
        self.sql.split("opengeni_guards.").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
    }

    /// Whether a function lies in the contract's schema, and not in the data schema.
    pub fn is_private(&self) -> bool {
        self.name.starts_with("opengeni_private.")
    }

    /// A table's columns, read off its definition.
    pub fn columns(&self) -> impl Iterator<Item = Column> {
        self.sql
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter_map(|line| {
                let mut words = line.trim_end_matches(',').split(' ');
                Some(Column {
                    name: words.next()?,
                    ty: match words.next()? {
                        "timestamptz" => "timestamp with time zone",
                        ty => ty,
                    },
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header that the parser does not know would silently leave an object out.
    #[test]
    fn every_header_is_parsed() {
        let headers = FILES
            .iter()
            .flat_map(|file| file.lines())
            .filter(|line| line.starts_with("-- @"))
            .count();
        assert_eq!(OBJECTS.len(), headers);
        assert!(headers > 200);
        for object in OBJECTS.iter() {
            assert!(object.sql.ends_with(';'), "{object:?}");
            let inner = usize::from(object.sql.contains("BEGIN ATOMIC"));
            assert_eq!(object.sql.matches(";\n").count(), inner, "{object:?}");
            let last = object.name.split('(').next().unwrap_or_default();
            assert!(object.sql.contains(last), "{object:?}");
        }
    }

    #[test]
    fn columns_have_the_types_of_the_protocol() {
        const TYPES: &[&str] = &[
            "uuid",
            "text",
            "integer",
            "bigint",
            "boolean",
            "timestamp with time zone",
            "jsonb",
            "xid8",
            "uuid[]",
        ];
        for table in objects(Kind::Table) {
            assert!(table.columns().count() > 3, "{}", table.name);
            for column in table.columns() {
                assert!(TYPES.contains(&column.ty), "{} {column:?}", table.name);
            }
        }
    }

    /// What a guard reads has to be what `provision` creates.
    #[test]
    fn guards_read_columns_of_the_model() {
        use crate::protocol::tables::{ChildAdmission, LaunchLease, Process, Table};

        fn check<T: Table>() {
            let table = objects(Kind::Table)
                .find(|t| t.name == T::NAME)
                .unwrap_or_else(|| panic!("{} is not in the model", T::NAME));
            for read in T::COLUMNS {
                assert!(
                    table
                        .columns()
                        .any(|c| c.name == read.name && c.ty == read.ty.name()),
                    "{}.{}",
                    T::NAME,
                    read.name
                );
            }
        }
        check::<Process>();
        check::<ChildAdmission>();
        check::<LaunchLease>();
    }
}
