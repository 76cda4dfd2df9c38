"""mercer.gpytorch against GPyTorch's own kernels, and linear_operator's test cases."""

from __future__ import annotations

import copy
import pickle
import unittest

import mercer as mc
import pytest

torch = pytest.importorskip("torch")
gpytorch = pytest.importorskip("gpytorch")
cases = pytest.importorskip("linear_operator.test.linear_operator_test_case")
mg = pytest.importorskip("mercer.gpytorch")

THEIRS = gpytorch.kernels
TWO = torch.Size([2])
TEXT = "exp(-sum(square(x-z))/b)"


class Evaluated:
    """An operator of TEXT, and its matrix by the definition."""

    should_test_sample = False

    def evaluate_linear_op(self, op):
        gaps = op.x1[..., :, None, :] - op.x2[..., None, :, :]
        return torch.exp(-gaps.square().sum(-1) / op.tensor_params["b"][..., None, None])

    def made(self, rows, columns, b, batch=()):
        x1 = torch.randn(*batch, rows, 3)
        x2 = x1.clone() if columns is None else torch.randn(*batch, columns, 3)
        followed = [a.requires_grad_() for a in (x1, x2, torch.tensor(b))]
        return mg.linear_operator(TEXT, *followed[:2], b=followed[2])


class TestOperator(Evaluated, cases.LinearOperatorTestCase, unittest.TestCase):
    seed = 2

    def create_linear_op(self):
        return self.made(5, None, 1.0)


class TestBatchOperator(Evaluated, cases.LinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        return self.made(5, None, [2.0, 1.0], TWO)


class TestRectangularOperator(
    Evaluated, cases.RectangularLinearOperatorTestCase, unittest.TestCase
):
    seed = 0

    def create_linear_op(self):
        return self.made(5, 4, [2.0, 1.0], TWO)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


OPTIONS = {
    "plain": {},
    "ard": {"ard_num_dims": 3},
    "batch": {"batch_shape": TWO},
    "ard of a batch": {"ard_num_dims": 3, "batch_shape": TWO},
    "dims": {"active_dims": (0, 2)},
}
KERNELS = {
    "rbf": lambda m, **o: m.RBFKernel(**o),
    "matern 1/2": lambda m, **o: m.MaternKernel(0.5, **o),
    "matern 3/2": lambda m, **o: m.MaternKernel(1.5, **o),
    "matern 5/2": lambda m, **o: m.MaternKernel(2.5, **o),
    "rq": lambda m, **o: m.RQKernel(**o),
    "periodic": lambda m, **o: m.PeriodicKernel(**o),
}
JOINED = {
    "product": lambda m: m.RBFKernel() * m.MaternKernel(1.5, ard_num_dims=3),
    "product of dims": lambda m: (
        m.RBFKernel(active_dims=(0,)) * m.PeriodicKernel(active_dims=(1, 2)) * m.RQKernel()
    ),
    "sum of products": lambda m: (
        m.RBFKernel() + m.PeriodicKernel(ard_num_dims=3) * m.RBFKernel() + m.RQKernel()
    ),
    "batch": lambda m: THEIRS.ScaleKernel(
        m.RBFKernel(batch_shape=TWO) * m.RQKernel(batch_shape=TWO), batch_shape=TWO
    ),
    "with theirs": lambda m: m.RBFKernel() * THEIRS.LinearKernel(),
    "theirs inside": lambda m: m.ProductKernel(m.RBFKernel(), THEIRS.LinearKernel()),
}


def same(ours, theirs):
    """Values and gradients, by points and hyper-parameters, of both kernels with one state."""
    ours, theirs = ours.double(), theirs.double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(theirs.state_dict())
    x, z = torch.rand(6, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    for first, second in ((x, z), (x, None)):
        found = []
        for kernel in (ours, theirs):
            point = first.clone().requires_grad_()
            matrix = kernel(point, second).to_dense()
            weights = torch.linspace(-1, 1, matrix.numel(), dtype=torch.float64)
            loss = (matrix * weights.reshape(matrix.shape)).sum()
            found.append((matrix, *torch.autograd.grad(loss, [point, *kernel.parameters()])))
        # GPyTorch keeps distances from 0 by 1e-15, which Matern 1/2 has the root of.
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-7)
    for first, second in ((x, None), (x[:5], z)):
        ours_diagonal = ours(first, second, diag=True)
        torch.testing.assert_close(ours_diagonal, theirs(first, second, diag=True))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_those_of_gpytorch(name, options):
    if (name, options) == ("periodic", "ard of a batch"):
        with pytest.raises(NotImplementedError, match="not offered together"):
            KERNELS[name](mg, **OPTIONS[options])
        return
    same(KERNELS[name](mg, **OPTIONS[options]), KERNELS[name](THEIRS, **OPTIONS[options]))


@pytest.mark.parametrize("name", JOINED)
def test_sums_and_products(name):
    same(JOINED[name](mg), JOINED[name](THEIRS))


def test_products_of_this_module_have_one_formula():
    x = torch.rand(6, 3)
    kernel = mg.RBFKernel() * mg.MaternKernel() * mg.LaplaceKernel()
    operator = kernel(x).evaluate_kernel()
    assert isinstance(operator, mg.MercerLinearOperator)
    assert operator.x1.shape == (6, 9)


def test_products_of_products_are_one_product():
    x = torch.rand(6, 3)
    inner = mg.ProductKernel(mg.MaternKernel(), mg.LaplaceKernel())
    for outer in (mg.ProductKernel(mg.RBFKernel(), inner), mg.RBFKernel() * inner):
        operator = outer(x).evaluate_kernel()
        assert isinstance(operator, mg.MercerLinearOperator)
        expected = mg.RBFKernel()(x).to_dense() * inner(x).to_dense()
        torch.testing.assert_close(operator.to_dense(), expected)
    chosen = mg.ProductKernel(mg.MaternKernel(), mg.LaplaceKernel())
    chosen.active_dims = torch.tensor([0, 2])
    expected = mg.RBFKernel()(x).to_dense() * inner(x[:, [0, 2]]).to_dense()
    torch.testing.assert_close(mg.ProductKernel(mg.RBFKernel(), chosen)(x).to_dense(), expected)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = THEIRS.ScaleKernel(kernel)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def trained(x, y, kernel, steps):
    """A model after some steps, and the loss of each."""
    model = Model(x, y, kernel).to(x)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -likelihood(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model, losses


def data(count, dtype=torch.float64):
    x = torch.rand(count, 3, dtype=dtype)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(count, dtype=dtype)
    return x, y


@pytest.mark.parametrize(
    "make", [KERNELS["rbf"], KERNELS["matern 5/2"], KERNELS["periodic"], JOINED["product"]]
)
def test_a_process_trains_to_the_loss_of_gpytorch(make):
    x, y = data(60)
    (ours, found), (theirs, expected) = (trained(x, y, make(m), 15) for m in (mg, THEIRS))
    assert found == pytest.approx(expected, abs=1e-6)
    points = torch.rand(7, 3, dtype=torch.float64)
    with torch.no_grad():
        one, other = (m.eval().likelihood(m(points)) for m in (ours, theirs))
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-6, atol=1e-6)


def test_products_train_without_a_matrix(monkeypatch):
    """Conjugate gradients to the same loss, and no array of as many numbers as the matrix."""
    x, y = data(400)
    largest = []
    pairwise = mc.pairwise

    def watched(*args, **kwargs):
        out = pairwise(*args, **kwargs)
        largest.append(out.numel())
        return out

    monkeypatch.setattr(mc, "pairwise", watched)
    with (
        gpytorch.settings.max_cholesky_size(0),
        gpytorch.settings.cg_tolerance(1e-4),
        gpytorch.settings.num_trace_samples(200),
        gpytorch.settings.max_preconditioner_size(60),
        gpytorch.settings.min_preconditioning_size(10),
    ):
        _, found = trained(x, y, mg.RBFKernel(ard_num_dims=3), 2)
    _, expected = trained(x, y, THEIRS.RBFKernel(ard_num_dims=3), 2)
    assert found == pytest.approx(expected, abs=5e-3)  # 200 probes of the log determinant
    assert max(largest) <= 60 * 400  # the columns of the preconditioner


def test_any_formula_trains():
    x, y = data(40)
    kernel = mg.FormulaKernel("exp(-sum(abs(x-z)^p)/b)", params={"p": 1.3, "b": 2.0})
    torch.testing.assert_close(kernel.p.item(), 1.3, rtol=1e-6, atol=0)
    kernel.initialize(b=0.5, lengthscale=1.0)
    torch.testing.assert_close(kernel.b.item(), 0.5, rtol=1e-6, atol=0)
    expected = mc.pairwise("exp(-sum(abs(x-z)^p)/b)", x.float(), p=1.3, b=0.5)
    torch.testing.assert_close(kernel(x.float()).to_dense(), expected)
    _, losses = trained(x, y, kernel, 10)
    assert losses[-1] < losses[0] - 0.1
    bare = mg.FormulaKernel("b*sum(x*z)", params={"b": 2.0}, scaled=False)
    assert [name for name, _ in bare.named_parameters()] == ["raw_b"]
    with pytest.raises(ValueError, match='parameter "b" needs a value'):
        mg.FormulaKernel("b*sum(x*z)")


def test_parameters_of_formulas_are_assigned():
    kernel = mg.FormulaKernel(TEXT, params={"b": 2.0}, batch_shape=TWO)
    kernel.b = 0.5
    torch.testing.assert_close(kernel.b, torch.full((2, 1), 0.5))
    kernel.b = torch.tensor([[1.0], [3.0]])
    x = torch.rand(4, 3)
    expected = mc.pairwise(TEXT, x / kernel.lengthscale, b=torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(kernel(x).to_dense(), expected)
    with pytest.raises(RuntimeError, match="out of bounds"):
        kernel.b = -1.0
    torch.testing.assert_close(kernel.b, torch.tensor([[1.0], [3.0]]))
    kernel.register_prior("b_prior", gpytorch.priors.GammaPrior(3.0, 6.0), "b")
    kernel.sample_from_prior("b_prior")
    assert kernel.b[0, 0] == kernel.b[1, 0]
    drawn = torch.full((2, 1), 0.7)
    random = kernel.to_random_module().initialize(b=drawn)
    torch.testing.assert_close(random.b, drawn)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(
    "names",
    [["lengthscale"], ["dtype"], ["training"], ["formula"], ["b_constraint", "b"]],
)
def test_parameters_named_as_attributes_are_refused(names, scaled):
    text = f"exp(-sum(abs(x-z))/({'+'.join(names)}))"
    with pytest.raises(ValueError, match="must not be attributes that the kernel has"):
        mg.FormulaKernel(text, params=dict.fromkeys(names, 2.0), scaled=scaled)


def test_weights_of_features_have_gradients():
    x, w = torch.rand(6, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    v = torch.rand(6, 2, dtype=torch.float64)

    def product(x, w, v):
        return mg.linear_operator("exp(-sum(w*square(x-z)))", x, w=w) @ v

    inputs = [a.requires_grad_() for a in (x, w, v)]
    assert torch.autograd.gradcheck(product, inputs)


SIDED = {
    "difference": ("sum(abs(x-2*z))", {}),
    "parameter": ("exp(-sum(square(x-z/b)))", {"b": (2,)}),
    "number": ("exp(-sum(abs(x-b*z)))", {"b": 1.5}),
    "weights": ("sum(w*x*square(z))", {"w": (3,)}),
    "symmetric": (TEXT, {"b": (2,)}),
}


@pytest.mark.parametrize("name", SIDED)
def test_transposes_are_of_the_formula_with_its_sides_exchanged(name):
    text, shapes = SIDED[name]
    double = {"dtype": torch.float64}
    params = {n: 1 + torch.rand(s, **double) if type(s) is tuple else s for n, s in shapes.items()}
    x, z = torch.rand(2, 5, 3, **double), torch.rand(2, 4, 3, **double)
    operator = mg.linear_operator(text, x, z, **params)
    matrix = mc.pairwise(text, x, z, **params)
    torch.testing.assert_close(operator.mT.to_dense(), matrix.mT)
    torch.testing.assert_close(operator.mT.mT.to_dense(), matrix)
    left, right = torch.rand(2, 5, 2, **double), torch.rand(2, 4, 2, **double)
    torch.testing.assert_close(left.mT @ operator, left.mT @ matrix)
    torch.testing.assert_close(operator._t_matmul(left), matrix.mT @ left)

    followed = {n: v for n, v in params.items() if torch.is_tensor(v)}
    inputs = [a.requires_grad_() for a in (x, z, left, right, *followed.values())]

    def products(x, z, left, right, *values):
        given = {**params, **dict(zip(followed, values, strict=True))}
        operator = mg.linear_operator(text, x, z, **given)
        return operator @ right, operator.mT @ left

    assert torch.autograd.gradcheck(products, inputs)


def test_symmetric_formulas_are_their_own_transposes():
    operator = mg.linear_operator(TEXT, torch.rand(4, 3), torch.rand(5, 3), b=2.0)
    assert operator.mT.covar_func is operator.covar_func


def test_tensors_that_a_formula_carries_have_gradients_and_axes():
    x, b = torch.rand(2, 4, 3).double(), torch.tensor([1.0, 2.0]).double().requires_grad_()
    operator = mg.linear_operator(mc.kernel(TEXT).bind(b=b), x[0])
    assert operator.shape == (2, 4, 4)

    def products(b):
        formula = mc.kernel("exp(-sum(abs(x-2*z))/b)").bind(b=b)
        kernel = mg.FormulaKernel(formula, scaled=False)
        return mg.linear_operator(formula, x) @ x, kernel(x) @ x

    assert torch.autograd.gradcheck(products, [b])


def test_copies_and_states():
    kernel = mg.RQKernel(ard_num_dims=3) * mg.PeriodicKernel()
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        x = torch.rand(4, 3)
        assert torch.equal(other(x).to_dense(), kernel(x).to_dense())
    operator = mg.linear_operator(TEXT, torch.rand(4, 3), b=torch.tensor(2.0))
    again = pickle.loads(pickle.dumps(operator))
    assert torch.equal(again.to_dense(), operator.to_dense())


def test_rules():
    x = torch.rand(4, 3)
    with pytest.raises(ValueError, match="same number of features"):
        mg.linear_operator(TEXT, x, x[:, :2], b=1.0)
    with pytest.raises(ValueError, match='parameter "b" needs a value'):
        mg.linear_operator(TEXT, x)
    with pytest.raises(RuntimeError, match="nu expected"):
        mg.MaternKernel(2.0)
    for kernel in (mg.RBFKernel(), mg.ProductKernel(mg.RBFKernel(), mg.RQKernel())):
        for diag in (False, True):
            with pytest.raises(NotImplementedError, match="last_dim_is_batch is not offered"):
                kernel.forward(x, x, diag=diag, last_dim_is_batch=True)
    with pytest.raises(RuntimeError, match="must have the 3 features of ard_num_dims"):
        (mg.RBFKernel(ard_num_dims=3) * mg.RBFKernel())(x[:, :1]).to_dense()
    for text in ("sum(x*z) + i", "j*sum(x)", "row + sum(x*z)", "sum(x*z)*col"):
        with pytest.raises(ValueError, match="must not read i, j, row or col"):
            mg.linear_operator(text, x)
        with pytest.raises(ValueError, match="must not read i, j, row or col"):
            mg.FormulaKernel(text)
