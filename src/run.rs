//! Runs many tasks: a file of tasks in, a folder with reports out.

mod run_all;
mod task_file;

pub use self::{
    run_all::run_all,
    task_file::{load_tasks, parse_tasks},
};
