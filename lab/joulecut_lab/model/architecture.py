"""Shape of a transformer, and how many parameters it has.

One layer is attention (multi-head, grouped, or latent as in DeepSeek) and a feed-forward block
(plain, gated, or experts). Counts follow the published models, so that a configuration file gives
the published number of parameters.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer. Zero switches an optional part off.

    `head_dim` 0 stands for hidden / heads. `gated` feed-forward blocks have three matrices
    (SwiGLU), others two. The first `dense_layers` of a model with experts have a plain block of
    width `ffn`; the others have `experts` of width `expert_ffn`, of which a token uses
    `experts_active`, and `experts_shared` that every token uses. `kv_rank` above 0 means latent
    attention (MLA): keys and values come from a vector of that many numbers, and queries from one
    of `query_rank`. `window` limits attention to that many tokens, in `window_layers` of the layers
    (0: in all), which are taken as mixed evenly. `positions` counts learnt position vectors.
    `extra` are parameters beside these: sinks, biases of experts, norms of all heads at once.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool = False
    name: str = ""
    head_dim: int = 0
    tied: bool = False  # one matrix for embedding and logits
    positions: int = 0
    window: int = 0
    window_layers: int = 0
    extra: int = 0
    bias: bool = False  # of all linear layers
    query_bias: bool = False  # of queries, keys and values alone (qwen2)
    norm_bias: bool = False  # LayerNorm has one, RMSNorm none
    norms: int = 2  # norms of `hidden` numbers in a layer; 1 where blocks run in parallel (falcon)
    head_norm: bool = False  # norms of queries and keys per head (qwen3)
    embedding_norm: bool = False  # after the embedding (bloom)
    experts: int = 0
    experts_active: int = 0
    experts_shared: int = 0
    expert_ffn: int = 0  # width of one expert; 0: `ffn`
    dense_layers: int = 0
    router_bias: bool = False  # one number per expert that balances load (deepseek v3)
    expert_nodes: int = 0  # that the experts of a token may lie in; 0: any
    kv_rank: int = 0
    query_rank: int = 0
    rope_dim: int = 0  # of the part of a query and key that carries position, with `kv_rank`
    value_dim: int = 0  # of a value head; 0: `head_dim`

    @property
    def query_dim(self) -> int:
        """Numbers of one query or key head."""
        return (self.head_dim or self.hidden // self.heads) + (self.rope_dim if self.kv_rank else 0)

    @property
    def value_head_dim(self) -> int:
        return self.value_dim or self.head_dim or self.hidden // self.heads

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_width(self) -> int:
        return self.expert_ffn or self.ffn

    @property
    def ffn_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def attention_weights(self) -> int:
        """Weights of the matrices of one attention block."""
        if self.kv_rank:
            queries = self.heads * self.query_dim
            down = self.hidden * (self.query_rank + self.kv_rank + self.rope_dim)
            up = (self.query_rank or self.hidden) * queries
            up += self.kv_rank * self.heads * (self.query_dim - self.rope_dim + self.value_head_dim)
            return down + up + self.heads * self.value_head_dim * self.hidden
        keys = self.kv_heads * (self.query_dim + self.value_head_dim)
        values = self.heads * (self.query_dim + self.value_head_dim)
        return self.hidden * (values + keys)

    @property
    def window_share(self) -> float:
        """Of the layers, those that see a window alone."""
        return (self.window_layers or self.layers) / self.layers if self.window else 0.0

    @property
    def dense_ffn_weights(self) -> int:
        """Weights of the matrices of one plain feed-forward block."""
        return self.ffn_matrices * self.hidden * self.ffn

    @property
    def expert_weights(self) -> int:
        """Weights of the matrices of one expert."""
        return self.ffn_matrices * self.hidden * self.expert_width

    def active_layer_weights(self, expert_layer: bool) -> int:
        """Weights of the matrices of one layer that a token meets."""
        if not expert_layer:
            return self.attention_weights + self.dense_ffn_weights
        met = (self.experts_active + self.experts_shared) * self.expert_weights
        return self.attention_weights + self.hidden * self.experts + met

    @property
    def active_weights(self) -> int:
        """The same of all layers."""
        dense = (self.layers - self.expert_layers) * self.active_layer_weights(False)
        return dense + self.expert_layers * self.active_layer_weights(True)

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding, or of the logits, without positions."""
        return self.vocab * self.hidden

    @property
    def small_weights(self) -> int:
        """Norms and biases of one layer, without those of a feed-forward block."""
        norm = self.hidden * (2 if self.norm_bias else 1)
        count = self.norms * norm
        qkv = self.heads * self.query_dim
        qkv += self.kv_heads * (self.query_dim + self.value_head_dim)
        if self.kv_rank:
            count += self.kv_rank + self.query_rank
        if self.bias:
            count += qkv + self.hidden
        elif self.query_bias:
            count += qkv
        if self.head_norm:
            count += 2 * self.query_dim
        return count

    def layer_parameters(self, expert_layer: bool) -> int:
        """Parameters of one layer."""
        count = self.attention_weights + self.small_weights
        inner = self.ffn * (2 if self.gated else 1)
        if not expert_layer:
            return count + self.dense_ffn_weights + (inner + self.hidden if self.bias else 0)
        count += self.hidden * self.experts + (self.experts if self.router_bias else 0)
        return count + (self.experts + self.experts_shared) * self.expert_weights

    @property
    def ends_parameters(self) -> int:
        """Embedding, positions, last norm and logits."""
        norm = self.hidden * (2 if self.norm_bias else 1)
        count = self.embedding_weights * (1 if self.tied else 2)
        return count + self.positions * self.hidden + norm * (1 + self.embedding_norm)

    @property
    def parameters(self) -> int:
        dense = self.layers - self.expert_layers
        count = dense * self.layer_parameters(False) + self.ends_parameters
        if self.expert_layers:
            count += self.expert_layers * self.layer_parameters(True)
        return count + self.extra

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets."""
        idle = max(0, self.experts - self.experts_active)
        return self.parameters - self.expert_layers * idle * self.expert_weights
