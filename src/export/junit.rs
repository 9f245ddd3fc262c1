//! JUnit XML, as `toolcrib run --junit` writes it.

use std::io::Write;

use super::{ExportSummary, output, run_reader::RunReader};
use crate::{error::Result, report::TestSuite};

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let (mut suite, mut summary) = (TestSuite::default(), ExportSummary::default());
    run.each_task(|task| {
        summary.tasks += 1;
        suite.add(&task.report);
        Ok(())
    })?;
    suite.begin(out).map_err(output::failed)?;
    run.each_task(|task| suite.test_case(out, &task.report).map_err(output::failed))?;
    suite.end(out).map_err(output::failed)?;
    Ok(summary)
}
