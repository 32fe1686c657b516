from typing_extensions import disjoint_base

@disjoint_base
class GID:
    def __init__(self, words: str) -> None: ...

@disjoint_base
class GlobalRoute:
    dgid: GID
    sgid_index: int
    hop_limit: int
    traffic_class: int
    def __init__(
        self, dgid: GID, sgid_index: int = 0, hop_limit: int = 1, traffic_class: int = 0
    ) -> None: ...

@disjoint_base
class AHAttr:
    dlid: int
    sl: int
    is_global: int
    port_num: int
    gr: GlobalRoute | None
    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None: ...

@disjoint_base
class QPCap:
    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int
    def __init__(
        self, max_send_wr: int, max_recv_wr: int, max_send_sge: int, max_recv_sge: int, max_inline_data: int
    ) -> None: ...

@disjoint_base
class QPAttr:
    qp_state: int
    cur_qp_state: int
    path_mtu: int
    qkey: int
    rq_psn: int
    sq_psn: int
    dest_qp_num: int
    qp_access_flags: int
    ah_attr: AHAttr | None
    pkey_index: int
    max_rd_atomic: int
    max_dest_rd_atomic: int
    min_rnr_timer: int
    port_num: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    def __init__(self, qp_state: int = 0, cur_qp_state: int = 0) -> None: ...
