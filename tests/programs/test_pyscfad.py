import jax
import pytest

pyscf = pytest.importorskip("pyscf")
gto = pytest.importorskip("pyscfad.gto")
scf = pytest.importorskip("pyscfad.scf")

WATER = {"atom": "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", "basis": "sto-3g", "verbose": 0}
TOLERANCE = 1e-10  # of the energy, in hartree; that of the orbitals is its square root


def test_hartree_fock_of_water_and_its_gradient(check):
    molecule = gto.Mole(**WATER)
    molecule.build(trace_exp=False, trace_ctr_coeff=False)
    reference = pyscf.scf.RHF(pyscf.gto.M(**WATER)).run(conv_tol=TOLERANCE**1.5)

    def program(molecule):
        def energy(molecule):
            solver = scf.RHF(molecule)
            solver.conv_tol = TOLERANCE
            return solver.kernel()

        value, gradient = jax.value_and_grad(energy)(molecule)
        return value, gradient.coords

    known = (reference.e_tot, reference.nuc_grad_method().kernel())
    check(program, molecule, known=known, tolerance=TOLERANCE**0.5, traceable=False)
