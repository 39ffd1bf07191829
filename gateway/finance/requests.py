"""Everything that can be asked of finance, as one tagged union."""

from __future__ import annotations

from gateway.finance.bill_messages import ImportFile, ListImports, ListRuns, Reconcile, ShowRun
from gateway.finance.close_messages import (
    CloseMonth,
    CloseStatus,
    ListCloses,
    ProposeClose,
    VerifyCloses,
    WithdrawClose,
)
from gateway.finance.commitment_messages import (
    ListCommitments,
    RecordCommitment,
    WithdrawCommitment,
)
from gateway.finance.form_messages import Once, PreviewFile, ShowCell, ShowForm, ShowProposal
from gateway.finance.generation_messages import ListGenerations
from gateway.finance.journal_messages import IssueJournal, ShowJournal
from gateway.finance.machines.messages import NoteMachines, ProposeMachines, ShowMachines
from gateway.finance.messages import Decide, ListAdjustments, ListProposals, Propose
from gateway.finance.price_messages import DecidePrice, ListPriceProposals
from gateway.finance.statement_messages import ShowStatement
from gateway.finance.story_messages import ShowAnomalies, ShowBridge

FinanceRequest = (
    ImportFile
    | ListImports
    | Reconcile
    | ListRuns
    | ShowRun
    | Propose
    | Decide
    | ListProposals
    | ListAdjustments
    | CloseStatus
    | CloseMonth
    | ProposeClose
    | DecidePrice
    | ListGenerations
    | ListPriceProposals
    | WithdrawClose
    | VerifyCloses
    | ListCloses
    | ShowJournal
    | IssueJournal
    | NoteMachines
    | ShowMachines
    | ProposeMachines
    | RecordCommitment
    | WithdrawCommitment
    | ListCommitments
    | Once
    | PreviewFile
    | ShowProposal
    | ShowCell
    | ShowForm
    | ShowStatement
    | ShowBridge
    | ShowAnomalies
)
"""Everything that can be asked of finance."""
